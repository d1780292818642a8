import type { Order } from '../../db/Order'
import { open } from '../../db/sqlite/open'
import { createDesk, type Desk } from '../../src/stock/desk'
import { createModel } from '../harness/desk-model'
import { network, orderOf, stock } from '../harness/desk-orders'
import { temporary } from '../harness/settlement'
import { createRandom, type Random } from './random'

/**
 * Runs orders against the model of a chain. Every event is drawn at random, the process is killed
 * at times, and afterwards all balances are compared.
 */

export type ModelOptions = {
  seed: string
  orders: number
  /** Whether there are reorganisations, too. */
  reorganises: boolean
}

export type ModelResult = {
  orders: number
  events: number
  kills: number
  reorganisations: number
  ends: Readonly<Record<string, number>>
  refundReasons: Readonly<Record<string, number>>
  /** Swaps of which a part went back. */
  changed: number
  /** Faults that the audit found; a correct run has none. */
  faults: readonly string[]
}

/** A run in progress. */
type Run = {
  readonly random: Random
  readonly model: ReturnType<typeof createModel>
  readonly placed: Map<string, Order>
  readonly wanted: number
  /** Undefined before the first start. */
  desk: Desk | undefined
  clock: number
  events: number
  kills: number
  reorganisations: number
}

/** Runs all orders to their end and audits them. */
export async function runModel(options: ModelOptions): Promise<ModelResult> {
  const random = createRandom(options.seed)
  const directory = temporary()
  const db = open({ dataDir: directory.path, now: () => 1_000 })
  const model = createModel(db, random.fork('model'))
  model.state.isStrict = random.chance(0.5)
  const run: Run = {
    random,
    model,
    placed: new Map(),
    wanted: options.orders,
    desk: undefined,
    clock: 1_000,
    events: 0,
    kills: 0,
    reorganisations: 0,
  }
  run.desk = startDesk(run)
  try {
    await runEvents(run, options.reorganises)
    await finish(run)
    const found = await Promise.all([...run.placed.keys()].map(model.orders.find))
    const ended = found.filter((order) => order !== undefined)
    return {
      orders: run.placed.size,
      events: run.events,
      kills: run.kills,
      reorganisations: run.reorganisations,
      ends: count(ended.map((order) => order.state)),
      changed: model.swaps.filter(({ returnedAtomic }) => returnedAtomic > 0n).length,
      refundReasons: count(ended.flatMap((order) => order.refundReason ?? [])),
      faults: audit(model, ended),
    }
  } finally {
    model.kill()
    db.close()
    directory.remove()
  }
}

function startDesk(run: Run): Desk {
  const desk = createDesk({
    ...run.model.connect(),
    stock,
    network,
    now: () => run.clock,
    log: () => undefined,
    sweepMs: 5,
    laterMs: 1,
  })
  // What happens meanwhile is remembered.
  void desk.recover()
  return desk
}

type Happening = readonly [weight: number, happen: () => unknown]

/** Runs random events until all orders are placed. */
async function runEvents(run: Run, reorganises: boolean): Promise<void> {
  const { random, placed, wanted } = run
  const happenings = [...salesOf(run), ...conditionsOf(run), ...timesOf(run, reorganises)]
  const total = happenings.reduce((sum, [weight]) => sum + weight, 0)
  while (placed.size < wanted) {
    let drawn = random.next() * total
    const chosen = happenings.find(([weight]) => {
      drawn -= weight
      return drawn < 0
    })
    await chosen?.[1]()
    run.events++
    if (random.chance(0.4)) await turn()
  }
}

/** Orders are placed, paid or not, and blocks are mined. */
function salesOf(run: Run): readonly Happening[] {
  const { random, model, placed } = run
  const pays = () => model.paid.size > 0
  return [
    [8, () => placed.size < run.wanted && buy(run)],
    [9, () => pays() && model.endPayment(random.pick(newest(run, 40)), true)],
    [1, () => pays() && model.endPayment(random.pick(newest(run, 40)), false)],
    [16, () => model.mine(random.chance(0.03))],
  ]
}

/** Changes of the market and the node. */
function conditionsOf({ random, model: { state } }: Run): readonly Happening[] {
  return [
    [3, () => (state.price = (state.price * BigInt(random.between(985, 1_015))) / 1_000n)],
    [1, () => (state.isDrained = random.chance(0.2))],
    [1, () => (state.isPaused = random.chance(0.2))],
    [1, () => toggle(state.blocked, orderOf(random).recipient)],
    [2, () => (state.faults = random.pick([0, 0, 0.1, 0.5, 1]))],
    [1, () => (state.silent = random.pick([0, 0, 0.1]))],
    [1, () => (state.shallow = random.pick([0, 0.3, 1]))],
    [1, () => (state.strangers = random.pick([0, 0, 0.3]))],
  ]
}

/** Time passes, processes are killed, and blocks are reorganised. */
function timesOf(run: Run, reorganises: boolean): readonly Happening[] {
  const { random, model, placed } = run
  return [
    [1, () => (run.clock += random.pick([0, 1_000, 60_000]))],
    [1, () => placed.size > 0 && retry(run, random.pick([...placed.keys()]))],
    [2, () => model.pass(BigInt(random.between(1, 8)))],
    [1, () => kill(run)],
    [reorganises ? 4 : 0, () => reorganise(run)],
  ]
}

/** Without further faults, every order must end. */
async function finish(run: Run): Promise<void> {
  const { model } = run
  const { orders } = model
  Object.assign(model.state, { isDrained: false, isPaused: false, faults: 0, silent: 0 })
  model.state.blocked.clear()
  for (let look = 0; look < 20_000; look++) {
    const open = (await orders.open()).filter(isOpen)
    for (const id of model.unpaid()) await model.endPayment(id, true)
    for (const { id, state: at } of open) {
      if (at === 'held' && look % 10 === 0) await retry(run, id)
    }
    model.mine(false)
    model.pass(1n)
    await turn()
    if (open.length === 0 && !model.mine(false)) break
  }
  await run.desk?.stop()
}

function buy({ random, model, placed }: Run): void {
  const order = orderOf(random, { floorAtomic: 0n })
  const quotedAtomic = (order.usdgAtomic * model.state.price) / 1_000_000n
  const floorAtomic = (quotedAtomic * 99n) / 100n
  const full = model.buy({ ...order, quotedAtomic, floorAtomic })
  placed.set(full.id, full)
}

/** The newest payments. */
function newest({ model }: Run, most: number): string[] {
  return [...model.paid.keys()].slice(-most)
}

function toggle(blocked: Set<string>, person: string): void {
  if (!blocked.delete(person)) blocked.add(person)
}

async function retry({ model, desk, clock }: Run, id: string): Promise<void> {
  await model.orders.move({ kind: 'request-retry', id, at: clock })
  desk?.drive(id)
}

function kill(run: Run): void {
  run.model.kill()
  void run.desk?.stop()
  run.desk = startDesk(run)
  run.kills++
}

async function reorganise(run: Run): Promise<void> {
  const { random, model } = run
  run.reorganisations++
  if (random.chance(0.3)) model.reorganiseDeeply()
  else if (random.chance(0.5) || model.paid.size === 0) model.reorganise()
  else await model.dropPayment(random.pick(newest(run, 10)))
}

/** A swap whose Transfer is missing stays held: it can never be refunded. */
function isOpen(order: Order): boolean {
  if (order.state === 'held') return order.heldReason !== 'delivery-not-found'
  return !['delivered', 'refunded', 'failed'].includes(order.state)
}

function audit(model: ReturnType<typeof createModel>, orders: readonly Order[]): string[] {
  const faults: string[] = []
  let paidAtomic = 0n
  for (const order of orders) {
    const { id, state, payer, recipient, totalAtomic, usdgAtomic } = order
    const isPaid = model.paid.get(order.paymentId)?.isPaid === true
    if (isPaid) paidAtomic += totalAtomic
    const swaps = model.swaps.filter((each) => each.orderId === id)
    const refunds = model.refunds.filter((each) => each.orderId === id)
    const fault = (what: string) => void faults.push(`${id} ${state}: ${what}`)
    if (swaps.length + refunds.length !== (isPaid ? 1 : 0)) {
      fault(`${swaps.length} swaps and ${refunds.length} refunds, paid: ${isPaid}`)
    }
    const [swap] = swaps
    const [refund] = refunds
    if (swap && (swap.usdgAtomic !== usdgAtomic || swap.recipient !== recipient)) fault('swap')
    if (swap && swap.payer !== payer) fault('what was not swapped went to another account')
    if (swap && swap.sharesAtomic < order.floorAtomic) fault('below the floor')
    if (refund && (refund.amountAtomic !== totalAtomic || refund.payer !== payer)) fault('refund')
    const isTold =
      (state === 'delivered' &&
        order.deliveredAtomic === swap?.sharesAtomic &&
        (order.returnedAtomic ?? 0n) === swap?.returnedAtomic) ||
      (state === 'held' && order.heldReason === 'delivery-not-found' && swap !== undefined) ||
      (state === 'refunded' && refund !== undefined) ||
      (state === 'failed' && !isPaid)
    if (!isTold) fault('not what happened')
  }
  const swapped = model.swaps.reduce((sum, each) => sum + each.usdgAtomic - each.returnedAtomic, 0n)
  const returned = model.swaps.reduce((sum, each) => sum + each.returnedAtomic, 0n)
  const refunded = model.refunds.reduce((sum, each) => sum + each.amountAtomic, 0n)
  if (paidAtomic !== swapped + returned + refunded) {
    faults.push(
      `${paidAtomic} paid, ${swapped} swapped, ${returned} returned, ${refunded} refunded`,
    )
  }
  if (model.state.deskAtomic !== 0n) faults.push(`the desk is left with ${model.state.deskAtomic}`)
  return faults
}

function count(names: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1
  return counts
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
