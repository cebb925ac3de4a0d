# Debian 12 packages only; tools/install-deps installs them.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
pkg_check_modules(SIMDJSON REQUIRED IMPORTED_TARGET simdjson)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
find_package(CLI11 REQUIRED)
if(BUILD_TESTING)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# A program of this project: one main, our options, into bin/.
function(glmd_program name)
  cmake_parse_arguments(P "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${P_SOURCES})
  target_link_libraries(${name} PRIVATE glmd_options ${P_LIBRARIES})
endfunction()

# A library: one folder.
function(glmd_library name)
  cmake_parse_arguments(P "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} STATIC ${P_SOURCES})
  target_link_libraries(${name} PUBLIC glmd_options ${P_LIBRARIES})
endfunction()

# A GoogleTest program; its tests become ctest tests named <Suite>.<claim>.
function(glmd_test name)
  cmake_parse_arguments(P "" "TIMEOUT;LABELS" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT P_TIMEOUT)
    set(P_TIMEOUT 300)
  endif()
  if(NOT P_LABELS)
    set(P_LABELS unit)
  endif()
  add_executable(${name} ${P_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_definitions(${name} PRIVATE GLMD_TESTS_DIR="${CMAKE_SOURCE_DIR}/tests"
                             GLMD_SOURCE_DIR="${CMAKE_SOURCE_DIR}" GLMD_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE glmd_options ${P_LIBRARIES} GTest::gmock GTest::gtest
                        GTest::gtest_main)
  gtest_discover_tests(${name} PROPERTIES TIMEOUT ${P_TIMEOUT} LABELS ${P_LABELS} DISCOVERY_TIMEOUT 60)
endfunction()
