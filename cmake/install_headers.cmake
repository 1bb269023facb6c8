# Installs `public_headers` in include/lockstep and `detail_headers` in
# include/lockstep/detail. Their includes of detail headers get the new names.
# Called by `cmake --install`.
cmake_policy(VERSION 3.25)

function(installed_name header variable)
  if(header IN_LIST detail_headers)
    string(REGEX REPLACE "^lockstep/" "lockstep/detail/" header ${header})
  endif()
  set(${variable} ${header} PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${header_staging})
foreach(header IN LISTS public_headers detail_headers)
  file(READ ${header_root}/${header} text)
  foreach(included IN LISTS detail_headers)
    installed_name(${included} name)
    string(REPLACE "#include \"${included}\"" "#include \"${name}\"" text
           "${text}")
  endforeach()
  installed_name(${header} name)
  file(WRITE ${header_staging}/${name} "${text}")
endforeach()
file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${include_dir}
     TYPE DIRECTORY FILES ${header_staging}/lockstep)
