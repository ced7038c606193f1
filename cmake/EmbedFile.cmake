# Writes a C++ source that holds files as data. Run as a script:
# cmake -DOUT=file.cc -DROOT=folder "-DFILES=a;b" -DHEADER=server/web_assets.h
#   -DNAMESPACE=terrace::server -DFUNCTION=WebAssets -P EmbedFile.cmake
set(text "// Made by cmake/EmbedFile.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\nnamespace {\n")
set(table "")
set(number 0)
separate_arguments(FILES UNIX_COMMAND "${FILES}")
foreach(name IN LISTS FILES)
  file(READ ${ROOT}/${name} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND text "constexpr unsigned char kFile${number}[] = {${bytes}};\n")
  string(APPEND table "    {\"/${name}\", kFile${number}, sizeof kFile${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()
string(APPEND text "constexpr terrace::server::WebAsset kAssets[] = {\n${table}};\n}  // namespace\n\nstd::span<const terrace::server::WebAsset> ${FUNCTION}() { return kAssets; }\n\n}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUT} "${text}")
