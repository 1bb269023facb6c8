#pragma once

// Tokenizers, and tokens on disk as samples to train on.

#include "lockstep/lm/text/tokenizer.h"
#include "lockstep/lm/text/tokens.h"
