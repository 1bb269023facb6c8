#pragma once

// Everything that lockstep::lockstep has, LibTorch included.

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/hugging_face.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/cli/embed/train_main.h"
#include "lockstep/core.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/text/open_tokenizer.h"
#include "lockstep/data/text/token_file_writer.h"
#include "lockstep/data/text/token_folder.h"
#include "lockstep/data/text/token_windows.h"
#include "lockstep/data/text/tokenize_files.h"
#include "lockstep/models/language/activation_checkpoint.h"
#include "lockstep/models/language/chunked_cross_entropy.h"
#include "lockstep/models/language/language_model.h"
#include "lockstep/models/model.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/trainer.h"
