# Read by CMake at every project() of the runtime's build. The runtime's own build forces the
# helper library of llama.cpp's command-line programs into it, which the Python bindings never
# load and which takes as long to compile as the model's code. A plain variable hides the forced
# cache entry.
set(LLAMA_BUILD_COMMON OFF)
