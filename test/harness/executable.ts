import { join } from 'node:path'
import { build } from '../../src/build'
import { cached } from './cache'

/** Path of the executable as operators get it, built from these sources. */
export const executable = join(
  await cached('executable', (directory) =>
    build({
      entry: join(import.meta.dir, '..', '..', 'src', 'main.ts'),
      outfile: join(directory, 'turnpike'),
    }),
  ),
  'turnpike',
)
