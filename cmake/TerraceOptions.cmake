option(TERRACE_BUILD_TESTS "Build the tests" ON)
option(TERRACE_BUILD_BENCH "Build the benchmarks" ON)
option(TERRACE_BUILD_FUZZ "Build the fuzzers (needs Clang)" OFF)
set(TERRACE_SANITIZE "" CACHE STRING "Sanitizers to build with: address, thread or empty")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Warnings are errors in our code only; system headers are included with -isystem.
add_library(terrace_flags INTERFACE)
target_compile_options(terrace_flags INTERFACE
  -Wall -Wextra -Werror -Wno-pedantic -Wno-missing-field-initializers -Wno-psabi -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++'s own std::stable_sort calls what it has marked as deprecated.
  target_compile_options(terrace_flags INTERFACE -Wthread-safety -Wno-deprecated-declarations)
else()
  # GCC 12 sees an overlap in "literal" + std::string that is not there (GCC bug 105651).
  target_compile_options(terrace_flags INTERFACE -Wno-restrict)
endif()
target_include_directories(terrace_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)

if(TERRACE_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
elseif(TERRACE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -Wno-tsan -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=thread)
  set(TERRACE_SANITIZER_SOURCES ${PROJECT_SOURCE_DIR}/tests/support/tsan_absl.cc)
endif()

# Coverage feedback for libFuzzer in all our code; the targets are in tests/fuzz.
if(TERRACE_BUILD_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_custom_target(fuzzers)
endif()
