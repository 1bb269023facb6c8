#pragma once

#include "tests/api/net_and_loss.h"
