// The upstream of streams, in a process of its own: its events must not delay what their buyer reads.

import { startModel } from '../model'

process.stdout.write(`${startModel().url}\n`)
