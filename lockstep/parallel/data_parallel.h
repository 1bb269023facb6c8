// Placeholder contract; see data_parallel_options.h. auto model =
// DataParallel(net, devices("auto"), DataParallelOptions());
