# What every target of ours is compiled with: `glmd_options`.
add_library(glmd_options INTERFACE)
target_include_directories(glmd_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/daemon)
target_compile_definitions(glmd_options INTERFACE GLMD_VERSION="${PROJECT_VERSION}")
target_compile_options(glmd_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Wold-style-cast -Werror
  # Arithmetic is part of the product: no contraction, no reordering (every float sum has one order).
  -ffp-contract=off -fno-math-errno
  # No path of the building machine in a binary.
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)

# What sanitizers add makes GCC take members of a variant or an optional for uninitialised
# (-Wmaybe-uninitialized, as its manual says); the release build has that warning.
if(GLMD_SANITIZE_ADDRESS)
  target_compile_options(glmd_options INTERFACE -fsanitize=address,undefined
                         -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  target_link_options(glmd_options INTERFACE -fsanitize=address,undefined)
endif()
if(GLMD_SANITIZE_THREAD)
  target_compile_options(glmd_options INTERFACE -fsanitize=thread -Wno-maybe-uninitialized)
  target_link_options(glmd_options INTERFACE -fsanitize=thread)
endif()
# Programs and tests themselves are short of loops: under a sanitizer optimising them costs more time
# than it saves.
set(glmd_main_options "")
if(GLMD_SANITIZE_ADDRESS OR GLMD_SANITIZE_THREAD)
  set(glmd_main_options -O0)
endif()
if(GLMD_FUZZ)
  target_compile_options(glmd_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined)
  target_link_options(glmd_options INTERFACE -fsanitize=address,undefined)
endif()
