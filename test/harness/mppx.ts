import { join } from 'node:path'
import { bundled } from './bundle'

/**
 * Path of the command `mppx` in a few files, for `process.execPath`: a start takes 0.3 s of processor
 * time, and 0.55 s from its hundreds of modules.
 */
export const mppx = await bundled('mppx', {
  entry: join(import.meta.dir, '..', '..', 'node_modules', 'mppx', 'dist', 'bin.js'),
})
