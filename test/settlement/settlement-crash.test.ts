import { expect, test } from 'bun:test'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import { balanceOf, type Chain } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import {
  networkOf,
  payee,
  startFixture,
  startNetwork,
  temporary,
  until,
} from '../harness/settlement'
import { bury, prepareLedger } from '../harness/test-ledger'

const deskKey = account(5).privateKey
const weiOf = async (chain: Chain) =>
  BigInt((await chain.rpc('eth_getBalance', [account(8).address, 'latest'])) as string)

/**
 * Pays in an endless loop, sixteen at a time, each a different amount. Beside that it runs jobs,
 * and the first of the previous round once more: a round ends after about three in each loop.
 */
const program = (url: string, dataDir: string, round: number) => `
  const { jobOf, networkOf, signTransfer, startFixture } = await import(${JSON.stringify(
    join(import.meta.dir, '../harness/settlement.ts'),
  )})
  const network = networkOf(${JSON.stringify(url)})
  const deskKey = Buffer.from('${deskKey.slice(2)}', 'hex')
  const fixture = await startFixture([network], ${JSON.stringify(dataDir)}, { deskKey })
  let count = 0
  const buyer = async (index) => {
    for (;;) {
      const method = index % 2 ? 'permit2' : 'eip3009'
      const nonce = '0x' + Buffer.from('${round} ' + index + ' ' + count++).toString('hex').padStart(64, '0')
      const transfer = signTransfer(network, { method, nonce, from: 1 + (index % 2), amountAtomic: BigInt(1 + index) })
      const outcome = await fixture.pay(transfer)
      // Without its chain it must end: never outlive the test.
      if (outcome.kind === 'unavailable') process.exit(1)
      console.log(outcome.kind)
    }
  }
  const jobs = async (index) => {
    const relayer = index % 2 ? fixture.settlement.desk : undefined
    for (let serial = Math.max(0, ${round} - 1) * 1000; ; serial++) {
      if (serial === (${round} - 1) * 1000 + 4) serial = ${round} * 1000
      const job = jobOf(network, { id: index + '/' + serial, relayer })
      const end = await fixture.settlement.run(job, { waitMs: 120_000 })
      if (end.kind === 'unavailable') process.exit(1)
      if (serial >= ${round} * 1000) console.log('job')
    }
  }
  for (let index = 0; index < 16; index++) buyer(index)
  for (let index = 0; index < 4; index++) jobs(index)
  process.stdin.on('end', () => process.exit(1)).resume()
`

test('after repeated kills no payment is lost, doubled or left open', async () => {
  const net = await startNetwork('usdg', { blockTimeMs: 50 })
  const directory = temporary()
  const network = networkOf(net.tap.url)
  await prepareLedger(directory.path)
  try {
    await net.chain.rpc('anvil_setBalance', [account(5).address, '0xde0b6b3a7640000'])
    const before = await balanceOf(net.chain, network.asset.address, payee)
    const weiBefore = await weiOf(net.chain)
    for (let round = 0; round < 4; round++) {
      const child = Bun.spawn(
        [process.execPath, '-e', program(net.tap.url, directory.path, round)],
        { stdin: 'pipe', stdout: 'pipe', stderr: 'ignore' },
      )
      let confirmed = 0
      let jobs = 0
      const decoder = new TextDecoder()
      try {
        for await (const chunk of child.stdout) {
          const said = decoder.decode(chunk, { stream: true })
          confirmed += said.split('confirmed\n').length - 1
          jobs += said.split('job\n').length - 1
          if (confirmed >= 20 + round * 7 && jobs > 10) break
        }
      } finally {
        child.kill('SIGKILL')
        await child.exited
        bury(directory.path)
      }
    }
    const fixture = await startFixture([network], directory.path, {
      deskKey: Crypto.bytes(deskKey),
    })
    const count = (sql: string) =>
      fixture.sql.query<{ n: number }, []>(`SELECT count(*) n FROM ${sql}`).get()?.n ?? -1
    await until(() => count("payments WHERE state IN ('broadcast', 'reverted')") === 0)
    await until(() => count("jobs WHERE state = 'broadcast'") === 0)
    const jobs = count('jobs')
    expect(jobs).toBeGreaterThan(40)
    expect(count("jobs WHERE state = 'confirmed'")).toBe(jobs)
    expect(await weiOf(net.chain)).toBe(weiBefore + 7n * BigInt(jobs))
    const payments = count('payments')
    expect(payments).toBeGreaterThan(100)
    expect(count("payments WHERE state = 'confirmed'")).toBe(payments)
    const paid = fixture.sql
      .query<{ sum: number }, []>('SELECT sum(CAST(amount_atomic AS INTEGER)) sum FROM payments')
      .get()
    const after = await balanceOf(net.chain, network.asset.address, payee)
    expect(after).toBe(before + BigInt(paid?.sum ?? -1))
    expect(count("transactions WHERE state <> 'mined'")).toBe(0)
    expect(count('(SELECT DISTINCT relayer, nonce FROM transactions) slots')).toBe(
      count('transactions'),
    )
    expect(count("transactions WHERE kind = 'batch'")).toBeGreaterThan(0)
    await fixture.stop()
  } finally {
    await net.stop()
    directory.remove()
  }
  // Nine seconds of work, and the starts of four programs: a busy machine takes long.
}, 600_000)
