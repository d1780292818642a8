import { join } from 'node:path'
import { external } from '../../src/build'
import { bundled } from './bundle'

/**
 * Path of the program in a few files, for `process.execPath`: what a checkout runs. A start from the
 * sources takes about 0.4 s of processor time to load them, a start from here 0.3 s, and one of
 * harness/executable.ts 0.1 s.
 */
export const main = await bundled('main', {
  entry: join(import.meta.dir, '..', '..', 'src', 'main.ts'),
  external,
})
