"""The story that `marq demo` tells: a broker, a pipeline, two workers, a kill -9, and a sum that comes out."""
