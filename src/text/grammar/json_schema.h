// JSON schemas (2020-12, and what drafts 4 to 7 spell otherwise) as grammars: every text that the
// grammar matches is JSON that the schema accepts.
//
// Where a schema leaves room the grammar takes some of it: properties come in the schema's order;
// what additionalProperties does not speak of is not written, unless the schema names no property
// at all; a schema without `type` has the types that its keywords are about; numbers have up to 16
// digits before the point and 15 behind. White space is what models write: one blank or one line
// end with up to 24 blanks, behind { [ , : and before } ].
//
// Keywords that restrict values in other ways (not, if, contains, uniqueItems, ...) are refused, as
// is a oneOf whose alternatives may both hold. Unknown keywords and formats are annotations.
#ifndef TERRACE_TEXT_GRAMMAR_JSON_SCHEMA_H_
#define TERRACE_TEXT_GRAMMAR_JSON_SCHEMA_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/value.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/grammar/grammar.h"
#include "text/grammar/json_schema_parts.h"

namespace terrace::grammar {

// The rules that all JSON is made of, in one grammar. Not thread-safe; `grammar` must outlive it.
class JsonRules {
 public:
  explicit JsonRules(Grammar* grammar) : grammar_(*grammar) {}

  Grammar& grammar() { return grammar_; }
  ExprId Space();
  ExprId String();  // any
  ExprId Number();
  ExprId Integer();
  ExprId Value();   // any
  ExprId Object();  // any
  // One character of a string, as it is written.
  ExprId StringCharacter();
  // `"` `inside` `"`
  ExprId Quoted(ExprId inside);
  // first (`,` next)* between the brackets, or none of it.
  ExprId List(std::string_view open, std::string_view close, ExprId item);

 private:
  // The rule `name`, whose body `make` gives the first time.
  template <typename F>
  ExprId Shared(std::string_view name, const F& make);

  Grammar& grammar_;
  std::map<std::string, int32_t, std::less<>> rules_;
};

struct JsonSchemaOptions {
  // Keywords that cannot be held are ignored. For tools, whose schemas are advice unless `strict`.
  bool lenient = false;
  std::string path = "#";  // of the schema, in errors
};

// Adds what `schema` accepts to the grammar of `rules`. `schema` must outlive the call only.
// InvalidArgument: "PATH: what is wrong there".
absl::StatusOr<ExprId> AddJsonSchema(const boost::json::value& schema,
                                     const JsonSchemaOptions& options, JsonRules* rules);

// A grammar of one JSON text that `schema` accepts.
absl::StatusOr<Grammar> JsonSchemaGrammar(const boost::json::value& schema,
                                          const JsonSchemaOptions& options = {});
// A grammar of any JSON object.
Grammar JsonObjectGrammar();

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_JSON_SCHEMA_H_
