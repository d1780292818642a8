import { afterAll, describe, expect, test } from 'bun:test'
import {
  type Address,
  decodeFunctionData,
  encodeFunctionData,
  encodeFunctionResult,
  type Hex,
  multicall3Abi,
  parseTransaction,
  recoverTransactionAddress,
} from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { createClient, RpcError, RpcFault } from '../../src/chain/client'
import { createHead, fees, observeBlock, pollMs } from '../../src/chain/head'
import * as Multicall from '../../src/chain/multicall'
import { sign } from '../../src/chain/transaction'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'

const servers: { stop(force: boolean): unknown }[] = []
afterAll(() => {
  for (const server of servers) server.stop(true)
})

/** A node with given answers. */
function node(answer: (id: number) => Response | Promise<Response>): string {
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    async fetch(request) {
      return answer(((await request.json()) as { id: number }).id)
    },
  })
  servers.push(server)
  return `http://127.0.0.1:${server.port}/v2/secret-key`
}

const ok = (result: unknown) => node((id) => Response.json({ jsonrpc: '2.0', id, result }))
const client = (...urls: string[]) =>
  createClient({ urls, timeoutMs: 300, log: (event, fields) => lines.push({ event, ...fields }) })
const lines: Record<string, unknown>[] = []

describe('the client', () => {
  const faults: [string, () => string][] = [
    ['a refused connection', () => 'http://127.0.0.1:1/'],
    ['status 500', () => node(() => new Response('', { status: 500 }))],
    ['status 429 with a JSON-RPC error', () => node(() => limited(429))],
    ['a JSON-RPC error of a limit', () => node(() => limited(200))],
    ['not JSON', () => node(() => new Response('<html>'))],
    ['neither result nor error', () => node(() => Response.json({ id: 1 }))],
    ['an error that is none', () => node(() => Response.json({ id: 1, error: { code: 'x' } }))],
    ['an answer to another call', () => node((id) => Response.json({ id: id + 1, result: '0x2' }))],
    ['a redirect', () => node(() => Response.redirect('http://127.0.0.1:1/'))],
    ['silence', () => node(() => new Promise(() => undefined))],
  ]
  for (const [name, url] of faults) {
    test(`${name} is a fault, and the next URL is used`, async () => {
      expect(await fault(client(url()).call('eth_chainId', []))).toBeInstanceOf(RpcFault)
      expect(await client(url(), ok('0x1')).call('eth_chainId', [])).toBe('0x1')
    })
  }

  test('an error about the call is final, with code, message and data', async () => {
    let asked = 0
    const second = node((id) => {
      asked++
      return Response.json({ id, result: '0x' })
    })
    for (const status of [200, 400]) {
      const first = node((id) =>
        Response.json(
          { jsonrpc: '2.0', id, error: { code: 3, message: 'execution reverted', data: '0x08' } },
          { status },
        ),
      )
      const error = await fault(client(first, second).call('eth_call', []))
      expect(error).toBeInstanceOf(RpcError)
      expect(error).toMatchObject({ code: 3, message: 'execution reverted', data: '0x08' })
    }
    expect(asked).toBe(0)
  })

  test('attack: a long message of an error, of which a contract chooses a part, is cut', async () => {
    const message = `execution reverted: ${'nonce '.repeat(100_000)}`
    const url = node((id) => Response.json({ jsonrpc: '2.0', id, error: { code: 3, message } }))
    const error = await fault(client(url).call('eth_call', []))
    expect(error).toMatchObject({ code: 3, message: message.slice(0, 1024) })
  })

  test('the client stays with the URL that answered, and counts calls', async () => {
    const rpc = client('http://127.0.0.1:1/', ok('0x1'))
    await rpc.call('eth_chainId', [])
    await rpc.call('eth_chainId', [])
    expect(rpc.counts().get('eth_chainId')).toBe(3)
  })

  test('the other URLs can be called separately, and the current one stays', async () => {
    const rpc = client(ok('0x1'), ok('0x2'), ok('0x3'))
    const answers = () => Promise.all(rpc.others().map((node) => node.call('eth_chainId', [])))
    expect(await answers()).toEqual(['0x2', '0x3'])
    expect(await rpc.call('eth_chainId', [])).toBe('0x1')
    expect(rpc.nodes.map(({ host }) => host)).toEqual([...rpc.hosts])
    expect(JSON.stringify(rpc.nodes)).not.toContain('secret-key')
  })

  test('the URL that answers now is not among the others, nor one listed twice', async () => {
    const [broken, good] = [node(() => new Response('', { status: 500 })), ok('0x2')]
    const rpc = client(broken, good, good)
    expect(await rpc.call('eth_chainId', [])).toBe('0x2')
    expect(rpc.others().map(({ host }) => host)).toEqual([new URL(broken).host])
    expect(client(good).others()).toEqual([])
    expect(client(good, good).others()).toEqual([])
  })

  test('error: a node that does not answer is a fault, though another one would answer', async () => {
    const rpc = client(ok('0x1'), 'http://127.0.0.1:1/')
    const [other] = rpc.others()
    expect(await fault(other?.call('eth_chainId', []) ?? Promise.resolve())).toBeInstanceOf(
      RpcFault,
    )
    rpc.close()
    const [first] = rpc.nodes
    expect(await fault(first?.call('eth_chainId', []) ?? Promise.resolve())).toBeInstanceOf(
      RpcFault,
    )
  })

  test('null is a result', async () => {
    expect(await client(ok(null)).call('eth_getTransactionReceipt', [])).toBeNull()
  })

  test('closing ends calls in progress', async () => {
    const rpc = client(node(() => new Promise(() => undefined)))
    const waiting = fault(rpc.call('eth_chainId', []))
    rpc.close()
    expect(await waiting).toBeInstanceOf(RpcFault)
    expect(await fault(rpc.call('eth_chainId', []))).toBeInstanceOf(RpcFault)
  })

  test('error: no message and no log line shows a URL', async () => {
    const url = node(() => new Response('', { status: 401 }))
    const error = await fault(client(url).call('eth_chainId', []))
    expect(String(error)).not.toContain('secret-key')
    expect(JSON.stringify(lines)).not.toContain('secret-key')
  })
})

function limited(status: number): Response {
  return Response.json({ id: 1, error: { code: -32005, message: 'limit' } }, { status })
}

async function fault(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => undefined,
    (error: unknown) => error,
  )
}

describe('a transaction', () => {
  const { privateKey, address } = account(0)
  const key = Crypto.bytes(privateKey)
  const signer = privateKeyToAccount(privateKey)
  const to: Address = '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168'
  const cases = [
    { nonce: 0, maxTipWei: 0n, maxFeeWei: 0n, gasLimit: 21_000n, valueWei: 0n, data: '0x' },
    { nonce: 1, maxTipWei: 1n, maxFeeWei: 2n, gasLimit: 1n, valueWei: 1n, data: '0x00' },
    { nonce: 127, maxTipWei: 127n, maxFeeWei: 128n, gasLimit: 255n, valueWei: 256n, data: '0x7f' },
    { nonce: 128, maxTipWei: 0n, maxFeeWei: 1n, gasLimit: 1n, valueWei: 10n ** 20n, data: '0x80' },
    ...[54, 55, 56, 57, 255, 256, 257, 70_000].map((size, index) => ({
      nonce: 255 + index,
      maxTipWei: 10n ** 9n,
      maxFeeWei: 3n * 10n ** 9n,
      gasLimit: 300_000n,
      valueWei: 0n,
      data: `0x${'ab'.repeat(size)}`,
    })),
  ] as const
  for (const { nonce, maxTipWei, maxFeeWei, gasLimit, valueWei, data } of cases) {
    test(`a transaction is byte for byte that of viem (nonce ${nonce})`, async () => {
      for (const chainId of [1, 4663, 84532]) {
        const request = { chainId, nonce, to, maxTipWei, maxFeeWei, gasLimit, valueWei }
        const signed = sign({ ...request, data: data as Hex }, key)
        const raw = await signer.signTransaction({
          type: 'eip1559',
          chainId,
          nonce,
          to,
          data: data as Hex,
          value: valueWei,
          gas: gasLimit,
          maxFeePerGas: maxFeeWei,
          maxPriorityFeePerGas: maxTipWei,
        })
        expect(signed.raw).toBe(raw)
        expect(signed.hash).toBe(Crypto.hex(Crypto.keccak256(Crypto.bytes(raw))))
      }
    })
  }

  test('many signatures, among them short r and s, equal those of viem', async () => {
    for (let nonce = 0; nonce < 600; nonce++) {
      const { raw } = sign(
        {
          chainId: 4663,
          nonce,
          to,
          maxTipWei: 1n,
          maxFeeWei: 2n,
          gasLimit: 3n,
          valueWei: 0n,
          data: '0x',
        },
        key,
      )
      const serializedTransaction = raw as `0x02${string}`
      expect(parseTransaction(serializedTransaction).nonce ?? 0).toBe(nonce)
      if (nonce % 50 === 0) {
        expect(await recoverTransactionAddress({ serializedTransaction })).toBe(address)
      }
    }
  })
})

describe('multicall', () => {
  const calls: Multicall.Call[] = [
    { to: account(1).address, data: '0x' },
    { to: account(2).address, data: '0x01020304' },
    { to: account(3).address, data: `0x${'cd'.repeat(33)}` },
  ]
  const expected = encodeFunctionData({
    abi: multicall3Abi,
    functionName: 'aggregate3',
    args: [calls.map(({ to, data }) => ({ target: to, allowFailure: true, callData: data }))],
  })

  test('multicall encodes and decodes like viem', () => {
    const { to, data } = Multicall.aggregate(calls)
    expect(data).toBe(expected)
    expect(decodeFunctionData({ abi: multicall3Abi, data }).functionName).toBe('aggregate3')
    expect(Multicall.parseCalls(to, data)).toEqual(calls)
    const results = [
      { success: true, returnData: '0x' },
      { success: false, returnData: '0x08c379a0' },
      { success: true, returnData: `0x${'01'.repeat(64)}` },
    ] as const
    const answer = encodeFunctionResult({
      abi: multicall3Abi,
      functionName: 'aggregate3',
      result: results,
    })
    expect(Multicall.parseResults(answer, 3)).toEqual(
      results.map(({ success, returnData }) => ({ success, data: returnData })),
    )
  })

  test('error: invalid data is undefined for calls and results, and never throws', () => {
    for (const answer of ['0x', '0x00', `0x${'ff'.repeat(400)}`, undefined, null, 5]) {
      expect(Multicall.parseResults(answer, 1)).toBeUndefined()
    }
    const { to, data } = Multicall.aggregate(calls)
    for (let end = 10; end < data.length - 64; end += 7) {
      expect(Multicall.parseCalls(to, data.slice(0, end))).toBeUndefined()
    }
    expect(Multicall.parseCalls(to, `${data.slice(0, 10)}${'ff'.repeat(400)}`)).toBeUndefined()
    expect(Multicall.parseCalls(account(1).address, data)).toBeUndefined()
  })
})

describe('the head', () => {
  test('fees leave room for a doubled base fee and stay below the cap', () => {
    const head = createHead()
    observeBlock(head, { number: 5n, timestamp: 100n, baseFeeWei: 10n })
    head.tipWei = 3n
    expect(fees(head, 1_000n)).toEqual({ maxFeeWei: 23n, maxTipWei: 3n })
    expect(fees(head, 20n)).toEqual({ maxFeeWei: 20n, maxTipWei: 3n })
    expect(fees(head, 2n)).toEqual({ maxFeeWei: 2n, maxTipWei: 2n })
  })

  test('the head measures the block time, also where many blocks share a second', () => {
    const head = createHead()
    observeBlock(head, { number: 1_000n, timestamp: 100n, baseFeeWei: 0n })
    observeBlock(head, { number: 1_005n, timestamp: 100n, baseFeeWei: 0n })
    expect(head.blockTimeMs).toBe(1_000)
    observeBlock(head, { number: 1_100n, timestamp: 110n, baseFeeWei: 0n })
    expect(head.blockTimeMs).toBe(100)
    expect(pollMs(head)).toBe(25)
    observeBlock(head, { number: 900n, timestamp: 90n, baseFeeWei: 7n })
    expect(head).toMatchObject({ number: 1_100n, baseFeeWei: 0n })
  })
})
