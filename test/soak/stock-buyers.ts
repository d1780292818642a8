import { ask, payMpp, payMppPermit2, payX402 } from '../harness/buyer'
import type { Payer } from '../harness/stock-payers'
import type { Random } from './random'
import type { StockSetup } from './stock-setup'

/** The last answer to a buyer about a purchase. */
export type Told = { status: number; orderId: string | undefined; recipient: string }

export type Buyers = {
  /** Every purchase that was paid for, by its credential. */
  answers: ReadonlyMap<string, Told>
  /** Buys until enough orders were placed. */
  run(): Promise<void>
  /** Repeats every request without a final answer, until it has one. */
  settle(): Promise<void>
}

const network = 'eip155:4663'
const atOnce = 24
/** An unused authorization is valid for five minutes. */
const settleMaxMs = 400_000
const init = { method: 'POST' }
/** Answers after which the same request is sent again. */
const openStatuses = [0, 202, 409, 500, 503]

type Purchase = { path: string; headers: Record<string, string>; key: string; recipient: string }

type State = {
  readonly setup: StockSetup
  readonly random: Random
  readonly answers: Map<string, Told>
  readonly purchases: Purchase[]
}

/** Many at a time, each with its own credential and timeout; some send two requests at once. */
export function createBuyers(setup: StockSetup, random: Random, wanted: number): Buyers {
  const state: State = { setup, random, answers: new Map(), purchases: [] }
  return {
    answers: state.answers,
    async run() {
      const work = async () => {
        while (countOrders(state) < wanted) await buyOne(state)
      }
      await Promise.all(Array.from({ length: atOnce }, work))
    },
    settle: () => settle(state),
  }
}

async function buyOne(state: State): Promise<void> {
  const { setup, random, purchases } = state
  const buyer = random.pick(setup.payers)
  const recipient = random.chance(0.3) ? random.pick(setup.payers).address : buyer.address
  const query = new URLSearchParams({
    symbol: random.pick(setup.tokens).symbol,
    usdg: (random.between(1_000_000, 20_000_000) / 1e6).toFixed(6),
    ...(recipient === buyer.address ? {} : { recipient }),
  })
  const path = `/api/stock/buy?${query}`
  const headers = await sign(state, path, buyer)
  if (headers === undefined) return
  const key = Object.values(headers).join()
  const purchase = { path, headers, key, recipient }
  purchases.push(purchase)
  if (random.chance(0.2)) await Promise.all([send(state, purchase), send(state, purchase)])
  for (let look = 0; look < random.between(1, 20); look++) {
    const { status } = await send(state, purchase)
    if (!openStatuses.includes(status)) return
    await Bun.sleep(random.between(10, 300))
  }
}

async function sign(
  { setup, random }: State,
  path: string,
  signer: Payer,
): Promise<Record<string, string> | undefined> {
  try {
    const asked = await ask(setup.service.url + path, init)
    if (asked.response.status !== 402) return undefined
    const [challenge] = asked.challenges
    const draw = random.between(0, 3)
    if (draw > 1 && challenge !== undefined) {
      const pay = draw === 2 ? payMpp : payMppPermit2
      return { authorization: await pay(challenge, signer) }
    }
    const method = draw === 0 ? 'permit2' : 'eip3009'
    return { 'payment-signature': await payX402(asked.required, signer, { network, method }) }
  } catch {
    // The program is being killed.
    await Bun.sleep(50)
    return undefined
  }
}

async function send(
  { setup, answers }: State,
  { path, headers, key, recipient }: Purchase,
): Promise<Told> {
  try {
    const response = await fetch(setup.service.url + path, { ...init, headers })
    const body = (await response.json()) as { id?: string; order?: { id: string } }
    const told = { status: response.status, orderId: body.order?.id ?? body.id, recipient }
    answers.set(key, told)
    return told
  } catch {
    return { status: 0, orderId: undefined, recipient }
  }
}

async function settle(state: State): Promise<void> {
  const { setup, purchases } = state
  const deadline = performance.now() + settleMaxMs
  let open = purchases
  while (performance.now() < deadline) {
    for (const row of setup.rows("SELECT id FROM orders WHERE state = 'held'")) {
      setup.retry(String(row.id))
    }
    const told = await Promise.all(open.map((each) => send(state, each)))
    open = open.filter((_, index) => openStatuses.includes(told[index]?.status ?? 0))
    const unfinished = setup.rows(
      "SELECT id FROM orders WHERE state NOT IN ('delivered', 'refunded', 'failed')",
    )
    if (open.length + unfinished.length === 0) break
    await Bun.sleep(500)
  }
  // This is the final answer, whatever came before.
  for (const purchase of purchases) await send(state, purchase)
}

function countOrders({ setup }: State): number {
  try {
    return Number(setup.rows('SELECT count(*) AS n FROM orders')[0]?.n)
  } catch {
    return 0
  }
}
