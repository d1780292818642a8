import type { Hex } from 'viem'
import { account } from '../../src/demo/accounts'
import type { Job } from '../../src/settlement/send/Job'
import { ownSettlement } from './own-settlement'
import { jobOf, type SettlementFixture, until } from './settlement'

type Row = { nonce: number; state: string; kind: string; hash: Hex; raw: Hex; relayer: string }

/** A desk that runs jobs, and the balance of their receiver. */
export async function ownJobs() {
  const own = await ownSettlement()
  const { network, net } = own
  const received = async () =>
    BigInt((await net.chain.rpc('eth_getBalance', [account(8).address, 'latest'])) as string)
  const before = await received()
  const told: string[] = []
  const run = (changes: Partial<Job> = {}, waitMs = 120_000) =>
    own.fixture.settlement.run(jobOf(network, changes), { waitMs })
  const listen = ({ settlement }: SettlementFixture) => {
    told.length = 0
    settlement.onJob(async (id) => void told.push(`${id} ${(await settlement.job(id))?.state}`))
  }
  listen(own.fixture)
  const { open } = own
  return Object.assign(own, {
    told,
    /** The state of a job is read after it was told of, so the answer of `run` may come before. */
    untilTold: (last: string) => until(() => told.at(-1) === last),
    run,
    async open(...of: Parameters<typeof open>) {
      await open(...of)
      listen(own.fixture)
    },
    /** Starts a job that is not decided soon, and continues when a node got its bytes. */
    async start(changes?: Partial<Job>) {
      const end = await run(changes, 20)
      if (end.kind !== 'pending') throw new Error(end.kind)
      await own.untilSent(end.transaction)
      return end.transaction
    },
    stateOf: async (id = 'refund:1') => (await own.fixture.settlement.job(id))?.state,
    moved: async () => (await received()) - before,
    transactions: () =>
      own.fixture.sql
        .query<Row, []>('SELECT * FROM transactions ORDER BY nonce, created_at, rowid')
        .all(),
  })
}

export type OwnJobs = Awaited<ReturnType<typeof ownJobs>>
