/* The version, in one place: the module, the rock and the build read it here. */
#ifndef ML_VERSION_H
#define ML_VERSION_H

#define ML_VERSION "0.1.0"

#endif
