#pragma once

#include "lockstep/lockstep.h"
