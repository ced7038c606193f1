#include <string>

#include "text/grammar/json_schema.h"

namespace terrace::grammar {

template <typename F>
ExprId JsonRules::Shared(std::string_view name, const F& make) {
  const auto [it, fresh] = rules_.try_emplace(std::string(name), 0);
  if (!fresh) return grammar_.Call(it->second);
  const int32_t rule = grammar_.AddRule(std::string(name));
  it->second = rule;
  grammar_.SetRule(rule, make());
  return grammar_.Call(rule);
}

ExprId JsonRules::Space() {
  return Shared("space", [this] {
    const ExprId blanks = grammar_.Repeat(grammar_.Class({{' ', ' '}, {'\t', '\t'}}), 0, 24);
    const ExprId line = grammar_.Sequence({grammar_.Bytes("\n"), blanks});
    return grammar_.Choice({grammar_.Empty(), grammar_.Bytes(" "), line});
  });
}

ExprId JsonRules::StringCharacter() {
  const Ranges hex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  auto one = [this](Ranges ranges) { return grammar_.Class(std::move(ranges)); };
  auto digits = [&](int32_t count) { return grammar_.Repeat(one(hex), count, count); };
  // \uXXXX other than halves of pairs, and whole pairs.
  const ExprId d = one({{'D', 'D'}, {'d', 'd'}});
  const ExprId high = grammar_.Sequence({d, one({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), digits(2)});
  const ExprId low = grammar_.Sequence({d, one({{'C', 'F'}, {'c', 'f'}}), digits(2)});
  const ExprId code = grammar_.Choice(
      {grammar_.Sequence(
           {one({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), digits(3)}),
       grammar_.Sequence({d, one({{'0', '7'}}), digits(2)}),
       grammar_.Sequence({high, grammar_.Bytes("\\u"), low})});
  const ExprId letter = one({{'"', '"'},
                             {'\\', '\\'},
                             {'/', '/'},
                             {'b', 'b'},
                             {'f', 'f'},
                             {'n', 'n'},
                             {'r', 'r'},
                             {'t', 't'}});
  const ExprId escape = grammar_.Choice({letter, grammar_.Sequence({grammar_.Bytes("u"), code})});
  return grammar_.Choice({one({{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLastCodePoint}}),
                          grammar_.Sequence({grammar_.Bytes("\\"), escape})});
}

ExprId JsonRules::Quoted(ExprId inside) {
  return grammar_.Sequence({grammar_.Bytes("\""), inside, grammar_.Bytes("\"")});
}

ExprId JsonRules::String() {
  return Shared("string",
                [this] { return Quoted(grammar_.Repeat(StringCharacter(), 0, kUnbounded)); });
}

ExprId JsonRules::Integer() {
  return Shared("integer", [this] {
    const ExprId digit = grammar_.Class({{'0', '9'}});
    const ExprId whole = grammar_.Choice(
        {grammar_.Bytes("0"),
         grammar_.Sequence({grammar_.Class({{'1', '9'}}), grammar_.Repeat(digit, 0, 15)})});
    return grammar_.Sequence({grammar_.Optional(grammar_.Bytes("-")), whole});
  });
}

ExprId JsonRules::Number() {
  return Shared("number", [this] {
    const ExprId digit = grammar_.Class({{'0', '9'}});
    const ExprId fraction = grammar_.Sequence({grammar_.Bytes("."), grammar_.Repeat(digit, 1, 15)});
    const ExprId sign = grammar_.Optional(grammar_.Class({{'+', '+'}, {'-', '-'}}));
    const ExprId exponent = grammar_.Sequence(
        {grammar_.Class({{'E', 'E'}, {'e', 'e'}}), sign, grammar_.Repeat(digit, 1, 2)});
    return grammar_.Sequence({Integer(), grammar_.Optional(fraction), grammar_.Optional(exponent)});
  });
}

ExprId JsonRules::List(std::string_view open, std::string_view close, ExprId item) {
  const ExprId more =
      grammar_.Repeat(grammar_.Sequence({grammar_.Bytes(","), Space(), item}), 0, kUnbounded);
  const ExprId items = grammar_.Sequence({item, more, Space()});
  return grammar_.Sequence(
      {grammar_.Bytes(open), Space(), grammar_.Optional(items), grammar_.Bytes(close)});
}

ExprId JsonRules::Object() {
  return Shared("object", [this] {
    const ExprId pair = grammar_.Sequence({String(), grammar_.Bytes(":"), Space(), Value()});
    return List("{", "}", pair);
  });
}

ExprId JsonRules::Value() {
  return Shared("value", [this] {
    return grammar_.Choice({Object(), List("[", "]", Value()), String(), Number(),
                            grammar_.Bytes("true"), grammar_.Bytes("false"),
                            grammar_.Bytes("null")});
  });
}

Grammar JsonObjectGrammar() {
  Grammar grammar;
  JsonRules rules(&grammar);
  const int32_t root = grammar.AddRule("root");
  grammar.SetRule(root, rules.Object());
  grammar.set_root(root);
  return grammar;
}

}  // namespace terrace::grammar
