# Fails when a file includes a header of a layer that its own layer must not know. -DROOT=<source tree>
set(bad "")

# forbid(FOLDER PATTERN): no file below FOLDER includes a project header that starts with PATTERN.
function(forbid folder pattern)
  file(GLOB_RECURSE files ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cpp ${ROOT}/${folder}/*.cu)
  foreach(file IN LISTS files)
    file(STRINGS ${file} includes REGEX "^ *# *include \"${pattern}")
    foreach(line IN LISTS includes)
      string(APPEND bad "\n  ${file}: ${line}")
    endforeach()
  endforeach()
  set(bad "${bad}" PARENT_SCOPE)
endfunction()

# keep(LIBRARY HOME): a header that includes <LIBRARY...> lies in a folder that matches HOME.
function(keep library home)
  foreach(layer core kernels parallel models apps)
    file(GLOB_RECURSE headers ${ROOT}/${layer}/*.h)
    foreach(file IN LISTS headers)
      file(STRINGS ${file} includes REGEX "^ *# *include <${library}")
      file(RELATIVE_PATH name ${ROOT} ${file})
      if(includes AND NOT name MATCHES "^${home}")
        string(APPEND bad "\n  ${name}: ${includes}")
      endif()
    endforeach()
  endforeach()
  set(bad "${bad}" PARENT_SCOPE)
endfunction()

forbid(core "(kernels|parallel|models|apps)/")
forbid(kernels "(core/data|parallel|models|apps)/")
forbid(parallel/comm "(core/data|parallel/plan|parallel/run|models|apps)/")
forbid(parallel/plan "(core/data|kernels|parallel/comm|parallel/run|models|apps)/")
forbid(parallel/run "(models|apps)/")
# Models see the runtime through the stage contract alone.
forbid(models "(apps/|parallel/run/[^s]|parallel/run/s[^t]|parallel/run/st[^a])")

keep(yaml-cpp core/config/)
keep(hdf5 core/)
keep("mpi\\.h" parallel/comm/mpi/)
keep(dnnl kernels/cpu/)
keep(nlohmann "(core/data/|core/metrics/|models/hf_json|apps/)")

if(bad)
  message(FATAL_ERROR "includes against the layer order:${bad}")
endif()
