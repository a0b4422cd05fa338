# QUIRE_SANITIZER=address,undefined or thread: every target is built with it. A report ends the test.
if(QUIRE_SANITIZER)
  add_compile_options(-fsanitize=${QUIRE_SANITIZER} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${QUIRE_SANITIZER})
  if(QUIRE_SANITIZER MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=all)
  endif()
endif()
