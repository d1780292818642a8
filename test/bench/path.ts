import '../harness/tmpfs'
import { join } from 'node:path'
import { plugin } from 'bun'
import { type FunctionSite, instrument } from './instrument'

/**
 * Prints which functions of src and db one paid GET runs: x402 exact, EIP-3009, an upstream, SQLite, no
 * key, not the first payment of its payer. `exported`: those that a file exports, so the steps from
 * file to file. `named`: also those inside of a file, and methods; a callback belongs to the function
 * around it. A function only passes on when its body is one call with values that it has. What ran in
 * only some of the payments is a timer's, and does not count. `--list` prints each function.
 */

const root = join(import.meta.dir, '../..')
const { sources, sites } = await instrument(root)
const ran = new Set<number>()
Object.defineProperty(globalThis, '__ran', { value: (site: number) => void ran.add(site) })
plugin({
  name: 'recorder of the path',
  setup(build) {
    build.onLoad({ filter: /\/(src|db)\/.*\.ts$/ }, async ({ path }) => ({
      contents: sources.get(path) ?? (await Bun.file(path).text()),
      loader: 'ts',
    }))
  },
})

// Loaded only now, so that the recorder is in it.
const { startShop } = await import('../harness/shop')
const { credentials, mint, payers } = await import('./paid/payers')
const { until } = await import('../harness/world')

const payments = 6
const id = 'eip155:8453'
const shop = await startShop({ adjust: (config) => ({ ...config, stock: undefined }) })
try {
  const network = shop.config.networks.find((each) => each.id === id)
  const chain = shop.chains[id]
  if (network === undefined || chain === undefined) throw new Error(`no ${id}`)
  const holders = payers(1)
  await mint(chain, network, holders)
  await shop.app.settlement.ready
  const url = `${shop.url}/m/shop/item`
  const [list = []] = await credentials({ url, protocol: 'x402', network }, holders, payments)
  let common: ReadonlySet<number> | undefined
  for (const [index, [name, value]] of list.entries()) {
    ran.clear()
    const response = await fetch(url, { headers: { [name]: value } })
    const text = await response.text()
    if (response.status !== 200) throw new Error(`${response.status} ${text}`)
    const open = "SELECT 1 FROM payments WHERE delivery <> 'delivered'"
    await until('the answer is delivered', () => shop.rows(open).length === 0)
    const own = new Set(ran)
    if (index > 0) common = common?.intersection(own) ?? own
  }
  report(sites.filter((_, site) => common?.has(site)))
} finally {
  await shop.stop()
}
process.exit()

function report(found: readonly FunctionSite[]): void {
  const named = found.filter(({ name }) => name !== undefined)
  const exported = named.filter(({ isExported }) => isExported)
  const passing = named.filter(({ passesOn }) => passesOn)
  const text = ({ file, line, name }: FunctionSite) => `${file}:${line} ${name}`
  const files = (list: readonly FunctionSite[]) => new Set(list.map(({ file }) => file)).size
  if (process.argv.includes('--list')) {
    for (const each of named) console.log(`${each.isExported ? 'export ' : ''}${text(each)}`)
  }
  console.log(`${exported.length} exported functions in ${files(exported)} files`)
  console.log(`${named.length} named functions in ${files(named)} files`)
  console.log(`${passing.length} only pass on`)
  for (const each of passing) console.log(`  ${text(each)}`)
}
