import { afterAll, expect, test } from 'bun:test'
import { type Credential, credentials, mint, payers } from '../bench/paid/payers'
import { countSql } from '../harness/costs'
import { startShop, type Tap } from '../harness/shop'
import { until } from '../harness/world'

/**
 * The exact cost of one payment in statements, commits and calls to the node. A change of a number
 * here changes the cost of every payment, so its commit must give the reason.
 */

const sql = countSql()
const shop = await startShop({
  openDatabase: sql.openDatabase,
  // The stock desk reads its orders on a timer of its own.
  adjust: (config) => ({ ...config, stock: undefined }),
})
afterAll(() => shop.stop())
const id = 'eip155:8453'
const chain = shop.chains[id]
const network = shop.config.networks.find((each) => each.id === id)
const tap = shop.taps[id] as Tap
if (!chain || !network) throw new Error(`no ${id}`)
const taps = Object.values(shop.taps)
const holders = payers(32)
await mint(chain, network, holders)
await shop.app.settlement.ready

const url = `${shop.url}/m/catjoke/joke`
const pay = async ([name, value]: Credential) => {
  const response = await fetch(url, { headers: { [name]: value } })
  await response.arrayBuffer()
  expect(response.status).toBe(200)
}
const hasOpen = () => shop.rows("SELECT 1 FROM payments WHERE delivery <> 'delivered'").length > 0
const settled = () => until('all is delivered', () => !hasOpen())
const calls = () => taps.flatMap((each) => each.calls.map(({ method }) => method))

/** Methods of payments. Others belong to the checks of the networks, every 15 seconds. */
const paid = ['eth_call', 'eth_sendRawTransactionSync']

/**
 * Counts the cost of `run`. Repeats it when a check of a network ran meanwhile, or when a timer wrote
 * the counts of requests or looked for old messages or open charges.
 */
async function measure(run: () => Promise<void>) {
  for (let attempt = 0; attempt < 3; attempt++) {
    await until('no call is open', () =>
      taps.every((each) => each.calls.length === each.answered.length),
    )
    for (const each of taps) each.calls.length = each.answered.length = 0
    sql.reset()
    await run()
    await settled()
    const methods = calls()
    const isAlone = ['insert requests', 'select webhooks', 'select authorizations'].every(
      (each) => sql.statements(each) === 0,
    )
    if (isAlone && methods.every((method) => paid.includes(method))) {
      const rpc = paid.map((method) => methods.filter((each) => each === method).length)
      return { ...sql.costs(), rpc: { calls: rpc[0], sends: rpc[1] } }
    }
  }
  throw new Error(`a payment makes other calls: ${[...new Set(calls())]}`)
}

const lone = {
  statements: {
    'insert gas_spent': 1,
    'insert payments': 1,
    'insert transaction_members': 1,
    'insert transactions': 1,
    'select payments': 2,
    'update payments': 2,
    'update transactions': 2,
  },
  // Before the send, and with the confirmation, which starts the delivery.
  commits: 2,
  // The end of the delivery.
  laterCommits: 1,
  rpc: { calls: 1, sends: 1 },
}

for (const protocol of ['mpp', 'x402'] as const) {
  test(`a lone ${protocol} payment costs 10 statements, 3 commits and 2 calls`, async () => {
    // The first payment of a payer, and the preparation of statements, do not count.
    const [list = []] = await credentials(
      { url: shop.url, protocol, network },
      holders.slice(0, 1),
      5,
    )
    const [first, ...rest] = list
    if (first === undefined) throw new Error('no credential')
    await pay(first)
    await settled()
    let index = 0
    const costs = () =>
      measure(async () => {
        const credential = rest[index++]
        if (credential === undefined) throw new Error('no credential is left')
        await pay(credential)
      })
    expect(await costs()).toEqual(lone)
    expect(await costs()).toEqual(lone)
  })
}

/**
 * Pays concurrently. The first payment is delayed while the node simulates it, so that the others
 * collect into one batch. `isCollected` tells when all of them wait.
 */
async function payTogether(list: readonly Credential[], isCollected: () => boolean) {
  const [first, ...others] = list
  if (first === undefined) throw new Error('no credential')
  const gate = Promise.withResolvers<void>()
  let isHeld = false
  let sends = 0
  let lead: Promise<void> | undefined
  tap.intercept = async ({ method }) => {
    if (method === 'eth_call' && !isHeld) {
      isHeld = true
      await gate.promise
    }
    // Confirmations of one turn of the event loop would share a commit.
    if (method === 'eth_sendRawTransactionSync' && ++sends === 2) await lead
    return undefined
  }
  lead = pay(first)
  await until('the first is simulated', () => isHeld)
  const rest = others.map(pay)
  await until('the others wait', isCollected)
  gate.resolve()
  await Promise.all([lead, ...rest])
  tap.intercept = undefined
  await settled()
}

test('32 concurrent payments cost 5 calls and 4 synchronous commits', async () => {
  const lists = await credentials({ url: shop.url, protocol: 'x402', network }, holders, 4)
  const round = (index: number) =>
    lists.map((list) => list[index]).filter((each) => each !== undefined)
  const isKnown = ({ address }: { address: string }) =>
    tap.answered.some(({ params }) =>
      JSON.stringify(params).includes(address.slice(2).toLowerCase()),
    )
  // The code of payers in a batch is read once in 30 seconds.
  await payTogether(round(0), () => holders.slice(1).every(isKnown))
  let index = 1
  const { laterCommits, ...costs } = await measure(() =>
    payTogether(round(index++), () => sql.statements('select payments') >= 32),
  )
  expect(costs).toEqual({
    statements: {
      'insert gas_spent': 2,
      'insert payments': 32,
      'insert transaction_members': 32,
      'insert transactions': 2,
      'select payments': 34,
      'update payments': 64,
      'update transactions': 4,
    },
    commits: 4,
    // The first one's simulation; that of the others and a read of their code; two transactions.
    rpc: { calls: 3, sends: 2 },
  })
  // Ends of deliveries share a commit within one turn of the event loop.
  expect(laterCommits).toBeGreaterThan(0)
  expect(laterCommits).toBeLessThanOrEqual(32)
})
