import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, parseAbi, parseSignature } from 'viem'
import * as Paid from '../../src/cli/buy/Credential'
import * as Terms from '../../src/cli/buy/Terms'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import * as Credential from '../../src/protocol/Credential'
import * as Permit from '../../src/protocol/Permit'
import { isFault } from '../../src/protocol/Problem'
import * as Transfer from '../../src/protocol/Transfer'
import * as X402 from '../../src/protocol/X402'
import { ask } from '../harness/buyer'
import { connect, request } from '../harness/raw'
import { networkOf } from '../harness/settlement'
import {
  effects,
  mppPermit,
  mppUsdc,
  mppUsdg,
  nothing,
  price,
  startTarget,
  type Target,
  type Way,
  ways,
  x402Permit,
  x402Usdc,
  x402Usdg,
} from '../harness/target'
import { until, whenFree } from '../harness/world'

let target: Target
beforeAll(async () => {
  target = await startTarget()
})
afterAll(() => target?.stop())
beforeEach(() => {
  target.upstream.answer = undefined
  target.usdc.tap.intercept = undefined
  target.usdg.tap.intercept = undefined
})

const buyer = account(1).local()
const at = (path: string) => `${target.url}/m/${path}`
const buy = (headers: Record<string, string>, path = 'a/get') => fetch(at(path), { headers })
const codeOf = async (response: Response) => ((await response.json()) as { code: string }).code
const pay = async (way: Way, path = 'a/get') => way.pay(await ask(at(path)), buyer)

const abi = parseAbi([
  'function transfer(address to, uint256 value) returns (bool)',
  'function approve(address spender, uint256 value) returns (bool)',
  'function cancelAuthorization(address authorizer, bytes32 nonce, uint8 v, bytes32 r, bytes32 s)',
  'function invalidateUnorderedNonces(uint256 wordPos, uint256 mask)',
])

/** Does something on chain after the simulation, before our transaction arrives. */
function beforeSend(way: Way, act: () => Promise<unknown>): void {
  const { tap } = target[way.side]
  tap.intercept = async ({ method }) => {
    if (!method.startsWith('eth_sendRawTransaction')) return undefined
    tap.intercept = undefined
    await act()
    return undefined
  }
}

/** The settling call that any reader of a credential can send. */
function transferOf(way: Way, headers: Record<string, string>): Transfer.Transfer {
  if (way.protocol === 'mpp') {
    const parsed = Credential.parse(headers.authorization ?? '')
    if (isFault(parsed)) throw new Error(parsed.detail)
    return parsed.transfer
  }
  const parsed = X402.parsePayload(headers['payment-signature'] ?? '')
  if (isFault(parsed)) throw new Error(parsed.detail)
  const { id, chainId, asset } = networkOf('http://localhost', way.side)
  const { spender: _, ...signed } = parsed.signed
  return { ...signed, method: way.method, network: id, chainId, asset: asset.address }
}

/** Another account sends the settling call first. */
function settleAsStranger(way: Way, headers: Record<string, string>): Promise<unknown> {
  const call = Transfer.call(transferOf(way, headers))
  return execute(target[way.side].chain, [{ from: account(9).address, ...call }])
}

const move = (way: Way, from: number, to: number, value: bigint) =>
  execute(target[way.side].chain, [
    {
      from: account(from).address,
      to: target[way.side].token,
      data: encodeFunctionData({
        abi,
        functionName: 'transfer',
        args: [account(to).address, value],
      }),
    },
  ])

const approve = (way: Way, value: bigint) =>
  execute(target[way.side].chain, [
    {
      from: buyer.address,
      to: target[way.side].token,
      data: encodeFunctionData({
        abi,
        functionName: 'approve',
        args: [Permit.permit2Address, value],
      }),
    },
  ])

/** The payer cancels its authorization. */
async function cancel(way: Way, headers: Record<string, string>): Promise<unknown> {
  const { nonce, chainId, asset: verifyingContract } = transferOf(way, headers)
  const { chain } = target[way.side]
  if (way.method === 'permit2') {
    const word = BigInt(nonce)
    const args = [word >> 8n, 1n << (word & 255n)] as const
    const data = encodeFunctionData({ abi, functionName: 'invalidateUnorderedNonces', args })
    return execute(chain, [{ from: buyer.address, to: Permit.permit2Address, data }])
  }
  const { eip712 } = networkOf('http://localhost', way.side).asset
  const signature = await buyer.signTypedData({
    domain: { ...eip712, chainId, verifyingContract },
    types: {
      CancelAuthorization: [
        { name: 'authorizer', type: 'address' },
        { name: 'nonce', type: 'bytes32' },
      ],
    },
    primaryType: 'CancelAuthorization',
    message: { authorizer: buyer.address, nonce },
  })
  const { r, s, yParity } = parseSignature(signature)
  const data = encodeFunctionData({
    abi,
    functionName: 'cancelAuthorization',
    args: [buyer.address, nonce, yParity + 27, r, s],
  })
  return execute(chain, [{ from: account(9).address, to: verifyingContract, data }])
}

describe('between simulation and settlement', () => {
  for (const way of ways) {
    test(`attack 9: the balance is moved away, ${way.name}`, async () => {
      const headers = await pay(way)
      const balance = await target[way.side].balanceOf(buyer.address)
      beforeSend(way, () => move(way, 1, 6, balance))
      const { result, ...caused } = await effects(target, () => buy(headers))
      expect([result.status, await codeOf(result)]).toEqual([503, 'settlement-reverted'])
      expect(caused).toMatchObject({ forwarded: 0, paidAtomic: 0n })
      expect(target.payments().at(-1)).toMatchObject({ state: 'reverted', delivery: 'none' })
      // While the balance is too low no second transaction is sent.
      const gas = target.rows()
      const poor = await buy(headers)
      expect([poor.status, target.rows()]).toEqual([503, gas])
      await move(way, 6, 1, balance)
      const later = await effects(target, () => buy(headers))
      expect([later.result.status, later.forwarded, later.paidAtomic]).toEqual([200, 1, price])
      expect((await buyWhenFree(headers)).status).toBe(402)
    })

    test(`attack 12: another account settles after the simulation, ${way.name}`, async () => {
      const headers = await pay(way)
      beforeSend(way, () => settleAsStranger(way, headers))
      const { result, ...caused } = await effects(target, () => buy(headers))
      expect([result.status, caused.forwarded, caused.paidAtomic]).toEqual([200, 1, price])
      const again = await effects(target, () => buy(headers))
      expect({ ...again, result: again.result.status }).toEqual({ result: 402, ...nothing })
    })
  }

  for (const way of [x402Usdc, mppUsdg, mppPermit]) {
    test(`attack 11: the authorization is cancelled, ${way.name}`, async () => {
      const headers = await pay(way)
      beforeSend(way, () => cancel(way, headers))
      for (const look of [0, 1, 2]) {
        const { result, ...caused } = await effects(target, () => buy(headers))
        expect([look, result.status]).toEqual([look, 402])
        expect(caused).toMatchObject({ forwarded: 0, paidAtomic: 0n })
      }
      expect(target.payments().at(-1)).toMatchObject({ state: 'reverted', delivery: 'none' })
      const early = await pay(way)
      await cancel(way, early)
      const { result, ...caused } = await effects(target, () => buy(early))
      expect({ status: result.status, ...caused }).toEqual({ status: 402, ...nothing })
    })
  }

  test('attack 9: the allowance of Permit2 is revoked', async () => {
    for (const way of [mppPermit, x402Permit]) {
      const headers = await pay(way)
      beforeSend(way, () => approve(way, 0n))
      const { result, ...caused } = await effects(target, () => buy(headers))
      expect([result.status, await codeOf(result)]).toEqual([503, 'settlement-reverted'])
      expect(caused).toMatchObject({ forwarded: 0, paidAtomic: 0n })
      await approve(way, 2n ** 256n - 1n)
      expect((await buy(headers)).status).toBe(200)
    }
  })
})

describe('settled before the request', () => {
  beforeAll(() => target.reload({ payoutExclusive: true }))
  afterAll(() => target.reload({ payoutExclusive: false }))

  for (const way of [mppUsdc, mppUsdg, mppPermit]) {
    test(`attack 12: an external settlement bound to our challenge is served once, ${way.name}`, async () => {
      const headers = await pay(way)
      const { result, ...caused } = await effects(target, async () => {
        await settleAsStranger(way, headers)
        return Promise.all(Array.from({ length: 5 }, () => buy(headers)))
      })
      expect(result.filter(({ status }) => status === 200)).toHaveLength(1)
      expect(caused).toMatchObject({ forwarded: 1, paidAtomic: price })
      for (const path of ['a/get', 'a/get?x=1', 'b/get']) {
        const again = await effects(target, () => buy(headers, path))
        expect([200, 503]).not.toContain(again.result.status)
        expect(again).toMatchObject(nothing)
      }
    })
  }

  test("attack 12: an external settlement bound by mppx's nonce is served at its route once, and at no other", async () => {
    const asked = await ask(at('a/get'))
    const term = Terms.decode(asked.response.headers).find(
      ({ source, method, network }) =>
        source.kind === 'x402' && method === 'eip3009' && network === 'eip155:8453',
    )
    if (term === undefined) throw new Error('no such term')
    const { value } = Paid.from(term, {
      privateKey: Uint8Array.fromHex(account(1).privateKey.slice(2)),
      now: Date.now(),
      random: crypto.getRandomValues(new Uint8Array(32)),
    })
    const headers = { 'payment-signature': value }
    await settleAsStranger(x402Usdc, headers)
    for (const path of ['b/get', 'a/both']) {
      const { result, ...caused } = await effects(target, () => buy(headers, path))
      expect({ status: result.status, ...caused }).toEqual({ status: 402, ...nothing })
    }
    const { result, ...caused } = await effects(target, () => buy(headers))
    expect([result.status, caused.forwarded]).toEqual([200, 1])
    expect((await buyWhenFree(headers)).status).toBe(402)
  })

  for (const way of [mppUsdc, mppUsdg, mppPermit]) {
    test(`attack 12: without payout_exclusive an external settlement needs proof that it was unspent, ${way.name}`, async () => {
      await target.reload({ payoutExclusive: false })
      try {
        const headers = await pay(way)
        await settleAsStranger(way, headers)
        for (const path of ['a/get', 'b/get']) {
          const { result, ...caused } = await effects(target, () => buy(headers, path))
          expect({ status: result.status, ...caused }).toEqual({ status: 402, ...nothing })
        }
      } finally {
        await target.reload({ payoutExclusive: true })
      }
    })
  }

  for (const way of [x402Usdc, x402Usdg, x402Permit]) {
    test(`attack ${way === x402Usdg ? 8 : 12}: an authorization that another transaction spent is refused without gas, ${way.name}`, async () => {
      const headers = await pay(way)
      await settleAsStranger(way, headers)
      const { tap } = target[way.side]
      tap.calls.length = 0
      for (const path of ['a/get', 'b/get', 'a/get']) {
        const { result, ...caused } = await effects(target, () => buy(headers, path))
        expect({ status: result.status, ...caused }).toEqual({ status: 402, ...nothing })
      }
      const sends = tap.calls.filter(({ method }) => method.startsWith('eth_sendRaw'))
      expect(sends).toEqual([])
    })
  }

  test('attack 8: a used nonce that does not revert pays once, by whichever account and whenever it was used', async () => {
    for (const way of [x402Usdg, mppUsdg]) {
      const headers = await pay(way)
      beforeSend(way, async () => {
        await settleAsStranger(way, headers)
        // Again: the token only emits a log.
        await settleAsStranger(way, headers)
      })
      const { result, ...caused } = await effects(target, () =>
        Promise.all([buy(headers), buy(headers, 'b/get'), buy(headers)]),
      )
      expect(result.filter(({ status }) => status === 200)).toHaveLength(1)
      expect(caused).toMatchObject({ forwarded: 1, paidAtomic: price })
      const used = new Set(target.payments().map((payment) => payment.transaction_hash))
      expect(used.size).toBe(target.payments().length)
    }
  })
})

/** A buyer that sends a request and may disconnect. */
function openConnection(headers: Record<string, string>, path = '/m/a/get') {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
  const socket = connect(target.url, request(path, lines))
  return {
    answered: new Promise<true>((resolve) => socket.once('data', () => resolve(true))),
    async leave() {
      socket.destroy()
      // When later connections have been answered, the gateway has seen the end of this one.
      for (let look = 0; look < 5; look++) await fetch(`${target.url}/healthz`)
    },
  }
}

/** A request that reaches the upstream: until the one before has ended it is refused. */
async function openWhenFree(headers: Record<string, string>, asked: Promise<void>) {
  for (;;) {
    const connection = openConnection(headers)
    const isRefused = await Promise.race([connection.answered, asked.then(() => false)])
    if (!isRefused) return connection
  }
}

/** The abandoned request keeps its claim on the money until it notices the disconnection. */
const buyWhenFree = (headers: Record<string, string>) => whenFree(() => buy(headers))

describe('buyers that disconnect', () => {
  for (const way of [mppUsdc, mppPermit, x402Usdc, x402Permit]) {
    test(`attack 44: a buyer that disconnects during the settlement, ${way.name}`, async () => {
      const headers = await pay(way)
      const sent = Promise.withResolvers<void>()
      const goOn = Promise.withResolvers<void>()
      beforeSend(way, () => {
        sent.resolve()
        return goOn.promise
      })
      const caused = await effects(target, async () => {
        const connection = openConnection(headers)
        await sent.promise
        await connection.leave()
        const meanwhile = await buy(headers)
        expect([meanwhile.status, await codeOf(meanwhile)]).toEqual([409, 'payment-in-progress'])
        goOn.resolve()
        await until('it is recorded', () => target.payments().at(-1)?.state === 'confirmed')
      })
      expect(caused).toMatchObject({ forwarded: 0, paidAtomic: price })
      expect(target.payments().at(-1)).toMatchObject({ delivery: 'none', attempts: 0 })
      const later = await effects(target, () => buyWhenFree(headers))
      expect([later.result.status, later.forwarded, later.paidAtomic]).toEqual([200, 1, 0n])
      expect((await buyWhenFree(headers)).status).toBe(402)
    })

    test(`attack 44: a buyer that disconnects repeatedly while the upstream works, ${way.name}`, async () => {
      const headers = await pay(way)
      const before = target.upstream.requests.length
      for (let attempt = 1; attempt <= 6; attempt++) {
        const asked = Promise.withResolvers<void>()
        const goOn = Promise.withResolvers<void>()
        target.upstream.answer = async () => {
          asked.resolve()
          await goOn.promise
          return new Response('goods')
        }
        const connection = await openWhenFree(headers, asked.promise)
        await connection.leave()
        goOn.resolve()
        await until('it is recorded', () => target.payments().at(-1)?.delivery === 'none')
        expect(target.payments().at(-1)).toMatchObject({ attempts: attempt, state: 'confirmed' })
      }
      const { result, ...caused } = await effects(target, () => buyWhenFree(headers))
      expect({ status: result.status, ...caused }).toEqual({ status: 410, ...nothing })
      expect(target.upstream.requests.length - before).toBe(6)
    })
  }
})
