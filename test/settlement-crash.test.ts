import { expect, test } from 'bun:test'
import { join } from 'node:path'
import { balanceOf } from '../src/demo/chains'
import { networkOf, payee, startDesk, startNetwork, temporary, until } from './harness/settlement'

/** Pays without an end, sixteen at a time, each its own amount. */
const program = (url: string, dataDir: string, round: number) => `
  const { networkOf, signTransfer, startDesk } = await import(${JSON.stringify(
    join(import.meta.dir, 'harness/settlement.ts'),
  )})
  const network = networkOf(${JSON.stringify(url)})
  const desk = await startDesk([network], ${JSON.stringify(dataDir)})
  let count = 0
  const buyer = async (index) => {
    for (;;) {
      const method = index % 2 ? 'permit2' : 'eip3009'
      const nonce = '0x' + Buffer.from('${round} ' + index + ' ' + count++).toString('hex').padStart(64, '0')
      const transfer = signTransfer(network, { method, nonce, from: 1 + (index % 2), amountAtomic: BigInt(1 + index) })
      const outcome = await desk.pay(transfer)
      // Without its chain there is nothing to do: never outlive the test.
      if (outcome.kind === 'unavailable') process.exit(1)
      console.log(outcome.kind)
    }
  }
  for (let index = 0; index < 16; index++) buyer(index)
  process.stdin.on('end', () => process.exit(1)).resume()
`

test('behavior: killed again and again, no money is lost, doubled or forgotten', async () => {
  const net = await startNetwork('usdg', { blockTimeMs: 50 })
  const directory = temporary()
  const network = networkOf(net.tap.url)
  try {
    const before = await balanceOf(net.chain, network.asset.address, payee)
    for (let round = 0; round < 4; round++) {
      const child = Bun.spawn(
        [process.execPath, '-e', program(net.tap.url, directory.path, round)],
        { stdin: 'pipe', stdout: 'pipe', stderr: 'ignore' },
      )
      let confirmed = 0
      const decoder = new TextDecoder()
      try {
        for await (const chunk of child.stdout) {
          confirmed += decoder.decode(chunk).split('\n').length - 1
          if (confirmed >= 20 + round * 7) break
        }
      } finally {
        child.kill('SIGKILL')
        await child.exited
      }
    }
    const desk = await startDesk([network], directory.path)
    const count = (sql: string) =>
      desk.db.sqlite.query<{ n: number }, []>(`SELECT count(*) n FROM ${sql}`).get()?.n ?? -1
    await until(() => count("payments WHERE state IN ('broadcast', 'reverted')") === 0)
    const payments = count('payments')
    expect(payments).toBeGreaterThan(100)
    expect(count("payments WHERE state = 'confirmed'")).toBe(payments)
    const paid = desk.db.sqlite
      .query<{ sum: number }, []>('SELECT sum(CAST(amount_atomic AS INTEGER)) sum FROM payments')
      .get()
    const after = await balanceOf(net.chain, network.asset.address, payee)
    expect(after).toBe(before + BigInt(paid?.sum ?? -1))
    expect(count("transactions WHERE state <> 'mined'")).toBe(0)
    expect(count('(SELECT DISTINCT nonce FROM transactions)')).toBe(count('transactions'))
    expect(count("transactions WHERE kind = 'batch'")).toBeGreaterThan(0)
    await desk.stop()
  } finally {
    await net.stop()
    directory.remove()
  }
}, 60_000)
