# terrace_library(NAME [DEPS ...]): the static library terrace_NAME from every .cc below the current
# folder. Folders named in EXCLUDE (relative) are left to their own CMakeLists.txt.
function(terrace_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc)
  foreach(folder IN LISTS ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "/${folder}/")
  endforeach()
  if(sources)
    add_library(terrace_${name} STATIC ${sources})
    target_link_libraries(terrace_${name} PUBLIC terrace_flags ${ARG_DEPS})
  else()
    add_library(terrace_${name} INTERFACE)
    target_link_libraries(terrace_${name} INTERFACE terrace_flags ${ARG_DEPS})
  endif()
endfunction()

# terrace_test(NAME [DEPS ...]): one GoogleTest program from every *_test.cc (and other .cc) in the
# current folder, registered with ctest as one entry a test case. Golden data is found through
# TERRACE_TEST_DATA (tests/data) and TERRACE_GOLDEN (../shared/golden, may be absent).
function(terrace_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;LABEL" "DEPS;SOURCES" ${ARGN})
  if(ARG_SOURCES)
    set(sources ${ARG_SOURCES})
  else()
    file(GLOB sources CONFIGURE_DEPENDS *.cc)
  endif()
  if(NOT sources)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(TERRACE_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")  # programs are that much slower
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${name}_test ${sources} ${TERRACE_SANITIZER_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPS} terrace_flags GTest::gtest GTest::gmock
    GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE
    TERRACE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    TERRACE_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
    TERRACE_GOLDEN="${PROJECT_SOURCE_DIR}/../shared/golden")
  add_test(NAME ${name} COMMAND ${name}_test)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABEL})
endfunction()

# terrace_fuzzer(NAME [DEPS ...]): one libFuzzer target from every .cc in the current folder, which
# is tests/fuzz/NAME. With TERRACE_BUILD_FUZZ it is built by target `fuzzers` as bin/NAME_fuzz.
# Without, the same code is linked with a main that replays tests/fuzz/corpus/NAME, as test fuzz_NAME,
# so that what a fuzzer once found stays found.
function(terrace_fuzzer name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  if(NOT sources)
    return()
  endif()
  if(TERRACE_BUILD_FUZZ)
    add_executable(${name}_fuzz ${sources})
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${name}_fuzz PRIVATE ${ARG_DEPS} terrace_flags)
    add_dependencies(fuzzers ${name}_fuzz)
  else()
    add_executable(fuzz_${name}_test ${sources} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.cc)
    target_compile_definitions(fuzz_${name}_test PRIVATE
      TERRACE_CORPUS="${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name}")
    target_link_libraries(fuzz_${name}_test PRIVATE ${ARG_DEPS} terrace_flags GTest::gtest_main)
    add_test(NAME fuzz_${name} COMMAND fuzz_${name}_test)
    set_tests_properties(fuzz_${name} PROPERTIES TIMEOUT 300 LABELS fuzz)
  endif()
endfunction()
