# Injected into llama-cpp-python's CMake project (CMAKE_PROJECT_llama_cpp_INCLUDE) by deploy/setup.py.
#
# The sdist builds llama.cpp's `common` library although the binding never loads it, and compiles some 150 one-model
# files that each parse the same headers. Leaving the first out and compiling the second in batches takes the build from
# about 8.5 to about 3 minutes on two cores. No source is changed; the libraries export the same symbols.
# A normal variable shadows the cache entry that the binding's CMakeLists forces on (policy CMP0126).
set(LLAMA_BUILD_COMMON OFF)

function(hearth_shorten_build)
  if(TARGET llama)
    get_target_property(sources llama SOURCES)
    set_target_properties(llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    foreach(source IN LISTS sources)
      # Only the model graphs batch cleanly; the core files keep their own translation units (static names collide).
      if(NOT source MATCHES "models/[A-Za-z0-9_-]+\\.cpp$")
        set_source_files_properties("${source}" TARGET_DIRECTORY llama PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      endif()
    endforeach()
  endif()
  if(TARGET cpp-httplib)
    set_target_properties(cpp-httplib PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL hearth_shorten_build)
