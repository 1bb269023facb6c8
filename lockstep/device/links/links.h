#pragma once

// The connections between devices: copies over them, and checks that what
// arrives is what was sent. docs/links.md
//
//   links_between()             the links of a list of devices
//   check_links()               checks some links, in this process
//   guard_links(), BadLinks     checks the links before training uses them
//   to_device(), CopyPath       copies that avoid a bad link

#include "lockstep/device/links/device_copy.h"  // IWYU pragma: export
#include "lockstep/device/links/link.h"         // IWYU pragma: export
#include "lockstep/device/links/link_check.h"   // IWYU pragma: export
#include "lockstep/device/links/link_guard.h"   // IWYU pragma: export
