import { describe, expect, test } from 'bun:test'
import { createLimiter } from '../../src/chain/limiter'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import { isSend, ownSettlement, withoutSync } from '../harness/own-settlement'
import { signTransfer, until } from '../harness/settlement'

const rpcError = (code: number, message: string) => () => ({ error: { code, message } })

const faults: [name: string, answer: () => unknown][] = [
  ['429', () => new Response('slow down', { status: 429 })],
  ['500', () => new Response('', { status: 500 })],
  ['502 with a page', () => new Response('<html>bad gateway</html>', { status: 502 })],
  ['403', () => new Response('forbidden', { status: 403 })],
  ['half an answer', () => new Response('{"jsonrpc":"2.0","id":1,"res')],
  ['no result', () => Response.json({ jsonrpc: '2.0', id: 1 })],
  ['a result of another kind', () => ({ result: 7 })],
  ['null', () => ({ result: null })],
  ['a limit', rpcError(-32005, 'daily request count exceeded')],
  ['an internal error', rpcError(-32603, 'Internal error')],
  ['a missing block', rpcError(-32000, 'header not found')],
  ['a missing state', rpcError(-32000, 'missing trie node 0123 (path )')],
]

describe.concurrent('a fault of a node', () => {
  for (const [name, answer] of faults)
    test(`${name} at any stage is never an invalid payment`, async () => {
      await using own = await ownSettlement()
      const { net, network } = own
      for (const stage of ['eth_call', 'send', 'eth_getTransactionReceipt']) {
        const before = await own.paid()
        const transfer = signTransfer(network)
        let isBroken = true
        net.tap.intercept = (call) => {
          const isHere = stage === 'send' ? isSend(call.method) : call.method === stage
          if (isHere && isBroken) {
            isBroken = false
            return answer()
          }
          return stage === 'eth_getTransactionReceipt' ? withoutSync(call) : undefined
        }
        const outcome = await own.fixture.pay(transfer)
        expect(['confirmed', 'unavailable']).toContain(outcome.kind)
        // The same credential still pays.
        if (outcome.kind !== 'confirmed') {
          expect(await own.paid()).toBe(before)
          await until(async () => {
            const { kind } = await own.fixture.pay(transfer)
            expect(['confirmed', 'unavailable']).toContain(kind)
            return kind === 'confirmed'
          })
        }
        expect(await own.paid()).toBe(before + 5_000n)
        net.tap.intercept = undefined
      }
    })

  for (const [name, answer] of faults.slice(0, 6))
    test(`${name} of one URL has no effect where there are two`, async () => {
      await using own = await ownSettlement()
      const { net, network } = own
      await own.reopen({ rpcUrls: [net.tap.url, net.chain.url] })
      const before = await own.paid()
      net.tap.intercept = answer
      expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
      expect(await own.paid()).toBe(before + 5_000n)
    })
})

describe.concurrent('an answer to the send', () => {
  const replies: [name: string, code: number, message: string][] = [
    ['already known', -32000, 'already known'],
    ['known transaction', -32010, 'Transaction with the same hash was already imported.'],
    ['nonce too low for our own transaction', -32000, 'nonce too low: next nonce 5, tx nonce 4'],
    ['replacement underpriced', -32000, 'replacement transaction underpriced'],
    ['a time-out of the node', -32000, 'request timed out'],
  ]
  for (const [name, code, message] of replies)
    test(`${name} after it was accepted is a success`, async () => {
      await using own = await ownSettlement()
      const { net, network } = own
      const before = await own.paid()
      net.tap.intercept = async (call, forward) => {
        if (!isSend(call.method)) return undefined
        await (await forward()).text()
        return { error: { code, message } }
      }
      expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
      expect(await own.paid()).toBe(before + 5_000n)
    })

  test('an answer that never arrives is replaced by the receipt', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const before = await own.paid()
    const { promise, resolve } = Promise.withResolvers<void>()
    net.tap.intercept = async (call, forward) => {
      if (!isSend(call.method)) return undefined
      await (await forward()).text()
      await promise
      return new Response('', { status: 504 })
    }
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    expect(await own.paid()).toBe(before + 5_000n)
    resolve()
  })

  test('"nonce too low" because of another program is signed again, once', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const before = await own.paid()
    let isFirst = true
    net.tap.intercept = async (call) => {
      if (!isSend(call.method) || !isFirst) return undefined
      isFirst = false
      const { address } = account(0)
      await net.chain.rpc('eth_sendTransaction', [{ from: address, to: address, value: '0x0' }])
      await mine(net.chain)
      return undefined
    }
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    expect(await own.paid()).toBe(before + 5_000n)
  })
})

describe.concurrent('a node that lags behind', () => {
  test('receipts of a lagging node are waited for', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const before = await own.paid()
    let late = 4
    net.tap.intercept = (call) => {
      if (call.method === 'eth_getTransactionReceipt' && late-- > 0) return { result: null }
      return withoutSync(call)
    }
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    expect(await own.paid()).toBe(before + 5_000n)
  })

  test('an old transaction count of a lagging node sends nothing twice', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const before = await own.paid()
    let isLate = false
    net.tap.intercept = ({ method }) => {
      if (method !== 'eth_getTransactionCount') return undefined
      isLate = !isLate
      return isLate ? { result: '0x0' } : undefined
    }
    for (let round = 0; round < 3; round++)
      expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    const looks = net.tap.calls.length
    await until(() => net.tap.calls.length > looks + 20)
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    expect(await own.paid()).toBe(before + 20_000n)
  })
})

describe('the order of calls', () => {
  test('sends precede waiting simulations, and simulations precede health checks', async () => {
    const limiter = createLimiter({ payment: 1, background: 1 })
    expect(limiter.acquire('payment', 1_000)).toBe(true)
    const order: string[] = []
    const waiting = [
      Promise.resolve(limiter.acquire('background', 1_000)).then(() => order.push('first check')),
      Promise.resolve(limiter.acquire('payment', 1_000)).then(() => order.push('simulation')),
      Promise.resolve(limiter.acquire('background', 1_000)).then(() => order.push('second check')),
    ]
    expect(limiter.acquire('settlement', 1_000)).toBe(true)
    limiter.release('payment')
    await waiting[1]
    limiter.release('payment')
    limiter.release('background')
    await Promise.all(waiting)
    expect(order.at(-1)).toBe('second check')
  })

  test('every call has a time limit, and closing ends every wait', async () => {
    const limiter = createLimiter({ payment: 1, background: 1 })
    limiter.acquire('payment', 1_000)
    expect(await limiter.acquire('payment', 5)).toBe(false)
    const waiting = limiter.acquire('payment', 60_000)
    limiter.close()
    expect(await waiting).toBe(false)
    expect(await limiter.acquire('background', 5)).toBe(false)
  })

  test('after a limit of the node only health checks wait', async () => {
    const limiter = createLimiter()
    limiter.slowDown()
    expect(limiter.acquire('payment', 10)).toBe(true)
    expect(limiter.acquire('settlement', 10)).toBe(true)
    expect(await limiter.acquire('background', 10)).toBe(false)
    limiter.close()
  })
})
