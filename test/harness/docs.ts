// `bun run docs` writes the generated pages of docs/.

import { join } from 'node:path'
import { renderApi } from './api-reference'
import { renderReference } from './config-reference'
import { renderMetrics } from './metrics-reference'
import { renderTroubleshooting } from './troubleshooting'
import { testWorld } from './world'

const root = join(import.meta.dir, '../..')
const read = (path: string) => Bun.file(join(root, path)).text()
const write = (path: string, text: string) => Bun.write(join(root, path), text)

// Only a running gateway has registered all of its metrics.
const world = await testWorld({ exchange: true })
try {
  await write('docs/configuration.md', renderReference())
  await write('docs/api.md', renderApi(await read('merchants.toml')))
  await write('docs/metrics.md', renderMetrics(world.app.metrics()))
  const page = 'docs/troubleshooting.md'
  await write(page, renderTroubleshooting(await read(page)))
} finally {
  await world.stop()
}
