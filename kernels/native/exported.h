// What Python calls: all else is hidden.
#pragma once

#define EXPORT __attribute__((visibility("default")))
