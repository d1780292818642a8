import { plugin } from 'bun'

/**
 * Gives each test three minutes, as a preload of bunfig.toml: a test takes seconds, and a
 * busy machine many times as long. Bun 1.4.4 has no setting for it, and
 * `setDefaultTimeout` applies to the file that calls it. So each file calls it first, on its own
 * first line, which keeps line numbers right.
 */
const call = "import { setDefaultTimeout as setLimit } from 'bun:test'; setLimit(180_000); "

plugin({
  name: 'time limit of tests',
  setup(build) {
    build.onLoad({ filter: /\.test\.ts$/ }, async ({ path }) => ({
      contents: call + (await Bun.file(path).text()),
      loader: 'ts',
    }))
  },
})
