#pragma once

#include "lockstep/lm.h"
#include "lockstep/lockstep.h"
