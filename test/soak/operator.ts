import { Database } from 'bun:sqlite'
import { join } from 'node:path'
import type { Program } from './program'
import type { Random } from './random'
import type { Sale } from './returning'
import type { Entitled, Store } from './rows'
import { refunder } from './setup'

/** What the operator of a soak does beside the program, and what it keeps of the rows. */
export type Operator = {
  /** Refunds a payment by the command. Never rejects. */
  refund(sale: Sale): Promise<void>
  /** Ends the time to redeem what was not delivered, as a day does. */
  endRedemptions(): Promise<void>
  /** Whether that was done before a time, unix ms. */
  isOver(paymentId: string, before: number): boolean
  /** All rows that were seen: the program deletes old ones. */
  entitled(): Promise<Entitled>
  /** How often the command ended how. */
  ends: ReadonlyMap<string, number>
  stop(): void
}

const lookMs = 5_000

export type OperatorOptions = {
  store: Store
  /** The command, and its options that name the data. */
  executable: string
  data: readonly string[]
  /** In addition to the path. */
  env: () => Readonly<Record<string, string>>
  directory: string
  /** Runs a change in the database, and resolves with the ids that it returns. */
  change: (sql: string) => Promise<readonly { id: string }[]>
  random: Random
}

/** The options for a program on SQLite. */
export function operatorOf(program: Program, random: Random): OperatorOptions {
  const { directory, command, store } = program
  const data = join(directory, 'data')
  return {
    ...{ store, directory, random, data: ['--data', data], executable: command[0] ?? '' },
    env: () => ({ REFUND_KEY: refunder.privateKey }),
    async change(sql) {
      const database = new Database(join(data, 'turnpike.sqlite'))
      try {
        database.run('PRAGMA busy_timeout = 5000')
        return database.query<{ id: string }, []>(sql).all()
      } finally {
        database.close()
      }
    },
  }
}

export function createOperator(options: OperatorOptions): Operator {
  const { store, executable, data, env, directory, change, random } = options
  const ends = new Map<string, number>()
  const over = new Map<string, number>()
  const seen = { entitlements: new Map(), uses: new Map(), refunds: new Map() }
  const look = async () => {
    const { entitlements, uses, refunds } = await store.entitled()
    for (const row of entitlements) seen.entitlements.set(row.id, row)
    for (const row of uses) seen.uses.set(row.id, row)
    for (const row of refunds) seen.refunds.set(row.payment_id, row)
  }
  const timer = setInterval(() => void look().catch(() => undefined), lookMs)
  timer.unref()
  return {
    ends,
    async refund(sale) {
      const id = sale.nonce && (await store.paymentId(sale.nonce).catch(() => undefined))
      if (!id) return
      sale.refundAt = Date.now()
      const part = String(Number(sale.amountAtomic) / 2e6)
      const amount = random.chance(0.3) ? ['--amount', part] : []
      const child = Bun.spawn([executable, 'refund', id, ...data, ...amount], {
        env: { PATH: process.env.PATH, ...env() },
        cwd: directory,
        stdout: 'ignore',
        stderr: 'ignore',
      })
      const name = `refund commands that ended with ${await child.exited}`
      ends.set(name, (ends.get(name) ?? 0) + 1)
    },
    async endRedemptions() {
      const at = Date.now() - 1
      const ended = await change(
        `UPDATE payments SET redeem_until = ${at} WHERE merchant = 'lost' AND redeem_until > ${at}
         AND delivery = 'none' RETURNING id`,
      )
      for (const { id } of ended) over.set(id, Date.now())
    },
    isOver: (paymentId, before) => (over.get(paymentId) ?? Number.POSITIVE_INFINITY) < before,
    async entitled() {
      await look()
      return {
        entitlements: [...seen.entitlements.values()],
        uses: [...seen.uses.values()],
        refunds: [...seen.refunds.values()],
      }
    },
    stop: () => clearInterval(timer),
  }
}
