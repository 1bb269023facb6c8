#pragma once

// Tokenizers, and tokens on disk as samples to train on.

#include "lockstep/data/text/tokenizer.h"
#include "lockstep/data/text/tokens.h"
