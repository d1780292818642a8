import { describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { parse as parseToml } from 'smol-toml'
import { builtIns } from '../../src/config/builtin'
import { developmentAccounts } from '../../src/config/cross-checks'
import { needsRestart } from '../../src/config/restart'
import { configOf, linesOf, payout, small } from '../harness/config'

/** Networks that the executable knows, and files that only name them. */

const shipped = await Bun.file(join(import.meta.dir, '../../merchants.toml')).text()

/** A file with these lines below [service], and these blocks. */
const file = (service: string, blocks = '') => `
[service]
payout = "${payout}"
${service}
${blocks}
[[merchants]]
slug = "one"
upstream = "https://one.example.com"
[[merchants.routes]]
path = "/"
price = "0.01"
`
const block = (id: string, keys: string) => `[networks."${id}"]\n${keys}\n`
const other = `name = "Other"
rpc_urls = ["https://rpc.example.com"]
asset = { symbol = "USDX", address = "0x2222222222222222222222222222222222222222", eip712 = { name = "X", version = "1" } }`

const networksOf = (text: string) => configOf(text).networks
const idsOf = (text: string) => networksOf(text).map(({ id }) => id)

describe('built-in networks', () => {
  test('the built-in networks are those of the file that ships', () => {
    const tables = Object.fromEntries(builtIns.map(({ id, table }) => [id, table]))
    expect(tables).toEqual(parseToml(shipped).networks as typeof tables)
    const words = builtIns.map(({ word }) => `"${word}"`).join(', ')
    const named = networksOf(file(`networks = [${words}]`))
    const order = configOf(shipped, { env: { PAYOUT: payout } }).networks
    for (const network of order) expect(named).toContainEqual(network)
    expect(named).toHaveLength(order.length)
  })

  test('the list gives the networks and their order, by word or by id', () => {
    expect(idsOf(file('networks = ["base", "robinhood"]'))).toEqual(['eip155:8453', 'eip155:4663'])
    expect(idsOf(file('networks = ["eip155:4663", "Base"]'))).toEqual([
      'eip155:4663',
      'eip155:8453',
    ])
  })

  test('words name networks wherever the file names one', () => {
    const text = file(
      'networks = ["base", "robinhood", "base-sepolia"]\ndiscovery_network = "base"\nmpp_order = ["robinhood"]',
    ).replace('slug = "one"', 'slug = "one"\nnetworks = ["base-sepolia"]\ntestnet_ok = true')
    const { service, merchants } = configOf(text)
    expect(service.discoveryNetwork).toBe('eip155:8453')
    expect(service.mppOrder).toEqual(['eip155:4663', 'eip155:8453', 'eip155:84532'])
    expect(merchants[0]?.networks).toEqual(['eip155:84532'])
  })

  test('a block overrides single keys of a network in the list', () => {
    const keys = 'rpc_urls = ["http://127.0.0.1:8545"]\nasset = { symbol = "USD" }'
    const [plain] = networksOf(file('networks = ["base"]'))
    const [own] = networksOf(file('networks = ["base"]', block('eip155:8453', keys)))
    if (plain === undefined) throw new Error('no network')
    expect(own).toEqual({
      ...plain,
      rpcUrls: ['http://127.0.0.1:8545'],
      asset: { ...plain.asset, symbol: 'USD' },
    })
  })

  test('a block describes another chain of the list', () => {
    const text = file('networks = ["eip155:10", "base"]', block('eip155:10', other))
    expect(idsOf(text)).toEqual(['eip155:10', 'eip155:8453'])
  })

  test('without a list the blocks are the networks, each complete by itself', () => {
    const text = file('', block('eip155:10', other))
    expect(idsOf(text)).toEqual(['eip155:10'])
    // Also for a network that is built in: its other keys have the defaults of every network.
    const [base] = networksOf(file('', block('eip155:8453', other)))
    expect([base?.name, base?.feeCapWei]).toEqual(['Other', 50_000_000_000n])
    expect(linesOf(file('', block('eip155:8453', 'rpc_urls = ["https://a.example.com"]')))).toEqual(
      [
        'm.toml:5: name is missing; write name = "Base"',
        'm.toml:5: asset is missing; write [networks."eip155:8453".asset]',
      ],
    )
  })

  test('an RPC override replaces the nodes of a built-in network', () => {
    const rpcUrls = { 'eip155:8453': 'http://127.0.0.1:1' } as const
    const { networks } = configOf(file('networks = ["base"]'), { overrides: { rpcUrls } })
    expect(networks[0]?.rpcUrls).toEqual(['http://127.0.0.1:1'])
  })

  test('dropping a built-in network leaves no fault in the keys that order networks', () => {
    const keys = 'discovery_network = "eip155:4663"\nmpp_order = ["eip155:8453", "eip155:4663"]'
    for (const networks of ['networks = ["base"]', '']) {
      const own = networks === '' ? block('eip155:8453', other) : ''
      const { service } = configOf(file(`${networks}\n${keys}`, own))
      expect(service.discoveryNetwork).toBe('eip155:8453')
      expect(service.mppOrder).toEqual(['eip155:8453'])
    }
    const { service } = configOf(file('networks = ["robinhood", "base"]'))
    expect(service.discoveryNetwork).toBe('eip155:4663')
    expect(service.mppOrder).toEqual(['eip155:8453', 'eip155:4663'])
  })
})

test('the files of docs/sell.md have no fault', async () => {
  const page = await Bun.file(join(import.meta.dir, '../../docs/sell.md')).text()
  const [least = '', node = '', described = ''] = [
    ...page.matchAll(/^```toml\n([\s\S]*?)^```/gm),
  ].map(([, text = '']) => text.replace('0xYourWallet', payout))
  const env = { RPC_KEY: 'k3y', WEATHER_KEY: 'k3y', PAYOUT: payout }
  const { merchants } = configOf(least, { env })
  expect(merchants[0]?.routes.map(({ path }) => path)).toEqual([''])
  const { networks } = configOf(least + node, { env })
  expect(networks.map(({ id, rpcUrls }) => [id, rpcUrls[0]])).toEqual([
    ['eip155:8453', 'https://base.your-provider.example/k3y'],
    ['eip155:4663', 'https://rpc.mainnet.chain.robinhood.com'],
  ])
  const [service = ''] = least.split('[[merchants]]')
  expect(configOf(service + described, { env }).merchants[0]?.routes[0]?.path).toBe('/forecast')
})

describe('faults of networks', () => {
  for (const [name, text, faults] of [
    [
      'a list that is empty',
      file('networks = []'),
      ['m.toml:4: networks is empty; write networks = ["base"]'],
    ],
    [
      'a list that is no array',
      file('networks = "base"'),
      ['m.toml:4: networks must be an array, such as networks = ["..."]'],
    ],
    [
      'a word that names no network',
      file('networks = ["base", "robin"]'),
      [
        'm.toml:4: networks[1] must be one of "base", "base-sepolia", "robinhood", or a CAIP-2 id such as "eip155:10" (found "robin")',
      ],
    ],
    [
      'a network twice',
      file('networks = ["base", "eip155:8453"]'),
      ['m.toml:4: networks names this network twice'],
    ],
    [
      'an id without a block',
      file('networks = ["base",\n  "eip155:10"]'),
      [
        'm.toml:5: eip155:10 is not built in: describe it in [networks."eip155:10"], or remove it here',
      ],
    ],
    [
      'a block that the list lacks',
      file('networks = ["base"]', block('eip155:4663', '')),
      [
        'm.toml:5: eip155:4663 is not in networks of [service]: add "robinhood" there, or remove this block',
      ],
    ],
    [
      'a block with a word',
      file('networks = ["base"]', block('base', '')),
      ['m.toml:5: write [networks."eip155:8453"]: a block has the CAIP-2 id'],
    ],
    [
      'a block without an id',
      file('networks = ["base"]', block('ethereum', '')),
      ['m.toml:5: ethereum is not a CAIP-2 id of an EVM network, such as "eip155:8453"'],
    ],
    [
      'a wrong key in a block',
      file('networks = ["base"]', block('eip155:8453', 'rpc_url = ["http://127.0.0.1:1"]')),
      ['m.toml:6: unknown key rpc_url; did you mean rpc_urls?'],
    ],
    [
      'a block that is no table',
      file('networks = ["base"]', '[networks]\n"eip155:8453" = 1'),
      ['m.toml:6: eip155:8453 must be a table, such as eip155:8453 = { ... }'],
    ],
    [
      'an asset that is no table',
      file('networks = ["base"]', block('eip155:8453', 'asset = "USDC"')),
      ['m.toml:6: asset must be a table, such as asset = { ... }'],
    ],
  ] as const)
    test(`error: ${name}`, () => {
      expect(linesOf(text)).toEqual([...faults])
    })
})

describe('public test keys', () => {
  const [known = '0x'] = developmentAccounts
  const relayers = () => [known]

  test('error: a relayer with a public test key is refused where a network is real', () => {
    const message =
      'RELAYER_KEYS, DESK_KEY, REFUND_KEY or RECEIVER_AUTHORIZER_KEY has the public test key of ' +
      `${known}: anyone can take ` +
      'its coins on Robinhood Chain. Unset it, or set your own (openssl rand -hex 32)'
    const local = block('eip155:8453', 'rpc_urls = ["http://127.0.0.1:8545"]')
    for (const text of [
      file('networks = ["robinhood"]'),
      file('networks = ["base", "robinhood"]', local),
    ])
      expect(linesOf(text, { relayers })).toEqual([`m.toml:4: ${message}`])
    expect(linesOf(file('networks = ["robinhood"]'))).toEqual([])
  })

  test('a public test key relays where every node is on this machine', () => {
    const local = block('eip155:8453', 'rpc_urls = ["http://127.0.0.1:8545"]')
    expect(linesOf(file('networks = ["base"]', local), { relayers })).toEqual([])
  })

  test('a public test key relays on the chain of anvil and hardhat, wherever its node is', () => {
    const local = other.replace('https://rpc.example.com', 'http://anvil:8545')
    const chain = (id: string) =>
      linesOf(file(`networks = ["${id}"]`, block(id, local)), { relayers })
    expect([chain('eip155:31337'), chain('eip155:31338')]).toEqual([
      [],
      [expect.stringContaining('has the public test key')],
    ])
  })
})

test('a running process keeps the channels of a network', () => {
  const parsed = (channels: string) =>
    configOf(small.replace('name = "Base"', `name = "Base"\n${channels}`))
  const [without, day] = [parsed(''), parsed('channels = {}')]
  const hours = parsed('channels = { withdraw_delay = "12h" }')
  const place = [['networks', 'eip155:8453', 'channels']]
  expect(needsRestart(day, hours)).toEqual(place)
  expect(needsRestart(without, day)).toEqual(place)
  expect(needsRestart(day, without)).toEqual(place)
  expect(needsRestart(day, day)).toEqual([])
})
