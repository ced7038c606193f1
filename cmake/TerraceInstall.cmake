# `cmake --install build/release --prefix /usr`: the program, and where the system looks for them its
# man page, its completion in shells, its unit and its licences. `cpack --config
# build/release/CPackConfig.cmake -G DEB` makes a Debian package of the same.
include(GNUInstallDirs)
install(TARGETS terrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# Made by the program itself, form by form: where to.
set(made
  man ${CMAKE_INSTALL_MANDIR}/man1/terrace.1
  bash ${CMAKE_INSTALL_DATADIR}/bash-completion/completions/terrace
  zsh ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions/_terrace
  fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d/terrace.fish)
set(pages ${PROJECT_BINARY_DIR}/pages)
while(made)
  list(POP_FRONT made form path)
  get_filename_component(folder ${path} DIRECTORY)
  get_filename_component(name ${path} NAME)
  install(CODE "
    file(MAKE_DIRECTORY ${pages}/${form})
    execute_process(COMMAND $<TARGET_FILE:terrace> help --form ${form}
      OUTPUT_FILE ${pages}/${form}/${name} COMMAND_ERROR_IS_FATAL ANY)")
  install(FILES ${pages}/${form}/${name} DESTINATION ${folder})
endwhile()

install(FILES deploy/systemd/terrace.service DESTINATION lib/systemd/system)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES web/vendor/uplot/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LICENSE.uPlot)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Serves many large language models from little memory")
set(CPACK_PACKAGE_CONTACT "Terrace <root@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
include(CPack)
