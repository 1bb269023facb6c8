#pragma once

// Everything that lockstep::lm has: language models, their tokens and their
// files. LibTorch is included.

#include "lockstep/lm/models/hugging_face.h"
#include "lockstep/lm/models/language_model.h"
#include "lockstep/lm/text/text.h"
