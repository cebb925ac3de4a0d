# Where programs and texts go. Everything lies below the prefix, so that `cmake --install --prefix`
# and DESTDIR both stage a complete tree.
if(TARGET glmd)
  install(TARGETS glmd RUNTIME DESTINATION ${CMAKE_INSTALL_SBINDIR})
endif()
foreach(program glmctl glmd-convert glmd-eval glmd-inspect glmd-make-model glmd-mirror glmd-replay)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
install(FILES README.md ARCHITECTURE.md HACKING.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
