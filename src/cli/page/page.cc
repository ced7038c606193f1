#include "cli/page/page.h"

#include <algorithm>
#include <string_view>

#include "cli/page/page_assets.h"

namespace terrace::cli {
namespace {

std::string_view File(std::string_view name) {
  for (const server::WebAsset& asset : PageAssets()) {
    if (asset.path.substr(1) == name) {
      return {reinterpret_cast<const char*>(asset.data), asset.bytes};
    }
  }
  return "";
}

void Replace(std::string_view mark, std::string_view with, std::string* text) {
  if (const size_t at = text->find(mark); at != std::string::npos) {
    text->replace(at, mark.size(), with);
  }
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// In a script element nothing may look like its end, or begin a comment.
std::string InScript(std::string text) {
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6) {
    text.replace(at, 1, "\\u003c");
  }
  return text;
}

}  // namespace

std::string MakePage(const std::string& title, const std::vector<std::string>& scripts,
                     const boost::json::object& data) {
  std::string page(File("report.html"));
  std::string code;
  for (const std::string& script : scripts) {
    code += "<script>\n";
    code += File(script);
    code += "</script>\n";
  }
  Replace("{{title}}", Escaped(title), &page);
  Replace("{{title}}", Escaped(title), &page);
  Replace("/*style*/",
          std::string(File("vendor/uplot/uPlot.min.css")) + std::string(File("report.css")), &page);
  Replace("{{data}}", InScript(boost::json::serialize(data)), &page);
  Replace("<!--scripts-->", code, &page);
  return page;
}

}  // namespace terrace::cli
