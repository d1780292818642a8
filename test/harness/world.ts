import { startWorld, type World } from '../../src/demo/world'
import { createLog } from '../../src/log'

/** The shipped configuration on local chains, on free ports, and every line that it logged. */
export type TestWorld = World & { url: string; logged: string[] }

/**
 * `edit` changes the text of merchants.toml before it is parsed. `exchange` adds the Uniswap pools,
 * stock tokens and feeds of `[stock]`.
 */
export async function testWorld(
  options: { edit?: (text: string) => string; now?: () => number; exchange?: boolean } = {},
): Promise<TestWorld> {
  const file = `${import.meta.dir}/../../merchants.toml`
  const shipped = await Bun.file(file).text()
  const logged: string[] = []
  const log = createLog({ write: (line) => void logged.push(line), pretty: false })
  const world = await startWorld({
    text: options.edit?.(shipped) ?? shipped,
    file: 'merchants.toml',
    log,
    port: 0,
    exchange: options.exchange === true,
    ...(options.now === undefined ? {} : { now: options.now }),
  })
  return { ...world, url: world.app.url, logged }
}

/**
 * Waits until a condition holds; fails after half a minute with what was waited for. The pause leaves
 * the processor to the processes that are waited for: chains, browsers, other tests.
 */
export async function until(
  what: string,
  condition: () => boolean | Promise<boolean>,
): Promise<void> {
  const deadline = performance.now() + 30_000
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`waited in vain until ${what}`)
    await Bun.sleep(2)
  }
}
