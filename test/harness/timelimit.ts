import { plugin } from 'bun'

/**
 * Gives each test a minute, as a preload of bunfig.toml. Bun 1.4.4 has no setting for it, and
 * `setDefaultTimeout` applies to the file that calls it. So each file calls it first, on its own
 * first line, which keeps line numbers right.
 */
const call = "import { setDefaultTimeout as setLimit } from 'bun:test'; setLimit(60_000); "

plugin({
  name: 'time limit of tests',
  setup(build) {
    build.onLoad({ filter: /\.test\.ts$/ }, async ({ path }) => ({
      contents: call + (await Bun.file(path).text()),
      loader: 'ts',
    }))
  },
})
