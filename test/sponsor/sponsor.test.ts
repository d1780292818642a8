import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import fc from 'fast-check'
import { type Address, encodeFunctionData, type Hex, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { buyWithX402 } from '../../src/demo/buyers'
import { balanceOf, type Chain, execute, receiptOf } from '../../src/demo/chains'
import * as Permit from '../../src/protocol/Permit'
import { approveCall } from '../../src/sponsor/facts'
import { runs } from '../harness/samples'
import { age, freshWallet, setTokens, signApprove, weiOf } from '../harness/sponsor'
import { type TestWorld, testWorld } from '../harness/world'

const network = 'eip155:4663'
const abi = parseAbi(['function setBlocked(address account, bool value)'])
let world: TestWorld
let chain: Chain
let token: Address
beforeAll(async () => {
  world = await testWorld({
    edit: (text) => text.replace('trust_proxy = 0 ', 'trust_proxy = 1 '),
  })
  const found = world.chains[network]
  const asset = world.config.networks.find(({ id }) => id === network)?.asset
  if (!found || !asset) throw new Error('no chain')
  chain = found
  token = asset.address
})
afterAll(() => world?.stop())

let clients = 0
/**
 * Each request comes from a network of its own, so that limits apply only where the test expects
 * them.
 */
const somewhere = () => `10.${++clients >> 8}.${clients & 255}.1`

/** Status and code. */
type ExpectedRefusal = [status: number, code: string]
type Answer = { status: number; headers: Headers; json: Record<string, unknown> }

async function ask(
  body: unknown,
  options: {
    client?: string
    headers?: Record<string, string>
    method?: string
    path?: string
  } = {},
): Promise<Answer> {
  const { client = somewhere(), method = 'POST', path = '/api/gas/sponsor' } = options
  const response = await fetch(world.url + path, {
    method,
    headers: {
      'content-type': 'application/json',
      'x-forwarded-for': client,
      ...options.headers,
    },
    ...(method === 'POST' ? { body: typeof body === 'string' ? body : JSON.stringify(body) } : {}),
  })
  const text = await response.text()
  return {
    status: response.status,
    headers: response.headers,
    json: text === '' ? {} : JSON.parse(text),
  }
}

const refusalOf = async (
  body: unknown,
  options?: Parameters<typeof ask>[1],
): Promise<ExpectedRefusal> => {
  const { status, json, headers } = await ask(body, options)
  expect(headers.get('content-type')).toBe('application/problem+json')
  return [status, String(json.code)]
}

describe('a wallet with USDG and nothing else', () => {
  const wallet = account(3)
  let first: Answer

  test('a wallet with only USDG gets the cost of one approve, confirmed before the answer', async () => {
    expect(await weiOf(chain, wallet.address)).toBe(0n)
    first = await ask({ address: wallet.address })
    expect(first.status).toBe(200)
    const amountWei = await weiOf(chain, wallet.address)
    expect(amountWei).toBeGreaterThan(0n)
    expect(first.json).toEqual({
      granted: true,
      transaction: expect.stringMatching(/^0x[0-9a-f]{64}$/),
      amountWei: String(amountWei),
      network,
      token,
      spender: Permit.permit2Address,
      approve: {
        ...approveCall(token),
        gas: expect.stringMatching(/^\d+$/),
        maxFeePerGas: expect.stringMatching(/^\d+$/),
        maxPriorityFeePerGas: '0',
        nonce: 0,
        chainId: 4663,
      },
      alternatives: ['eip3009', 'eip2612'],
    })
    const receipt = await chain.rpc('eth_getTransactionReceipt', [first.json.transaction])
    expect(receipt).toMatchObject({ status: '0x1', to: wallet.address.toLowerCase() })
  })

  test('error: the same wallet gets no second grant, in any case of its letters, with the first transaction', async () => {
    for (const address of [wallet.address, wallet.address.toLowerCase()]) {
      const again = await ask({ address, network })
      expect(again.status).toBe(409)
      expect(again.json).toMatchObject({
        code: 'already-sponsored',
        transaction: first.json.transaction,
        confirmed: true,
        alternatives: ['eip3009', 'eip2612'],
      })
    }
  })

  test('a sponsored wallet approves and buys by Permit2 with a stock client', async () => {
    const { gas, maxFeePerGas } = first.json.approve as { gas: string; maxFeePerGas: string }
    const fees = { gas: BigInt(gas), maxFeePerGas: BigInt(maxFeePerGas) }
    const raw = await signApprove(chain, wallet.privateKey, token, fees)
    const hash = (await chain.rpc('eth_sendRawTransaction', [raw])) as Hex
    expect((await receiptOf(chain, hash)).status).toBe('0x1')
    const before = await balanceOf(chain, token, wallet.address)
    const url = `${world.url}/m/weather/forecast?latitude=52.52&longitude=13.41`
    const bought = await buyWithX402(world, url, wallet, { network, method: 'permit2' })
    expect(bought.response.status).toBe(200)
    expect(await balanceOf(chain, token, wallet.address)).toBe(before - 5_000n)
    expect(await refusalOf({ address: wallet.address })).toEqual([409, 'already-sponsored'])
  })
})

test('concurrent requests for one address make one grant', async () => {
  const { address } = account(4)
  const answers = await Promise.all(
    Array.from({ length: 30 }, (_, index) =>
      ask({ address: index % 2 ? address : address.toLowerCase() }),
    ),
  )
  const granted = answers.filter(({ status }) => status === 200)
  expect(granted).toHaveLength(1)
  expect(String(await weiOf(chain, address))).toBe(String(granted[0]?.json.amountWei))
  for (const { status, json } of answers.filter((answer) => answer !== granted[0])) {
    expect(status).toBe(409)
    expect(json).toMatchObject({
      code: 'already-sponsored',
      transaction: granted[0]?.json.transaction,
    })
  }
})

describe('addresses that need no grant or may have none', () => {
  /** A fresh address with tokens, optionally for long, with code or with native coin. */
  async function holder(options: { atomic?: bigint; wei?: bigint; code?: Hex; isNew?: boolean }) {
    const { atomic = 250_000n, wei = 0n, code, isNew = false } = options
    const { address } = freshWallet()
    await setTokens(chain, token, [address], atomic)
    if (wei > 0n) await chain.rpc('anvil_setBalance', [address, `0x${wei.toString(16)}`])
    if (code) await chain.rpc('anvil_setCode', [address, code])
    if (!isNew) await age(chain)
    return address
  }

  test('exactly the least balance for long enough is enough', async () => {
    expect((await ask({ address: await holder({}) })).status).toBe(200)
  })

  test('dust of native coin is subtracted from the grant', async () => {
    const address = await holder({ wei: 5n })
    const { json } = await ask({ address })
    expect(await weiOf(chain, address)).toBe(BigInt(String(json.amountWei)) + 5n)
  })

  const cases: [name: string, () => Promise<Address>, answer: ExpectedRefusal][] = [
    ['has approved', async () => account(1).address, [409, 'already-approved']],
    ['has too little', () => holder({ atomic: 249_999n }), [422, 'asset-balance-too-low']],
    ['holds nothing', async () => freshWallet().address, [422, 'asset-balance-too-low']],
    ['has it since now', () => holder({ isNew: true }), [422, 'balance-too-young']],
    ['has gas', () => holder({ wei: 10n ** 15n }), [422, 'has-gas']],
    ['is a contract', () => holder({ code: '0x00' }), [422, 'not-an-eoa']],
    [
      'delegates to a contract (EIP-7702)',
      () => holder({ code: `0xef0100${token.slice(2)}` as Hex }),
      [422, 'not-an-eoa'],
    ],
    ['is the token', async () => token, [400, 'invalid-address']],
    ['is the relayer', async () => account(0).address, [400, 'invalid-address']],
    ['is zero', async () => `0x${'0'.repeat(40)}`, [400, 'invalid-address']],
    ['is a precompile', async () => `0x${'0'.repeat(37)}064`, [400, 'invalid-address']],
  ]
  for (const [name, address, answer] of cases) {
    test(`error: an address that ${name}: ${answer.join(' ')}`, async () => {
      expect(await refusalOf({ address: await address() })).toEqual(answer)
    })
  }

  test('error: an address that the token refuses gets no grant', async () => {
    const address = await holder({})
    const data = encodeFunctionData({ abi, functionName: 'setBlocked', args: [address, true] })
    await execute(chain, [{ from: account(9).address, to: token, data }])
    expect(await refusalOf({ address })).toEqual([422, 'approve-fails'])
  })
})

describe('the request', () => {
  const address = account(5).address
  const bad: [name: string, body: unknown, answer: ExpectedRefusal][] = [
    ['no address', {}, [400, 'invalid-address']],
    ['an address that is too short', { address: '0x12' }, [400, 'invalid-address']],
    ['an address with a typo', { address: address.replace('9', '8') }, [400, 'invalid-address']],
    ['a number', { address: 5 }, [400, 'invalid-address']],
    ['a list of addresses', { address: [address] }, [400, 'invalid-address']],
    ['an unknown network', { address, network: 'eip155:1' }, [400, 'invalid-parameter']],
    [
      'a network without sponsoring',
      { address, network: 'eip155:8453' },
      [400, 'invalid-parameter'],
    ],
    ['a network that is not a string', { address, network: 4663 }, [400, 'invalid-parameter']],
    ['an invalid signature', { address, signature: '0x00' }, [400, 'invalid-signature']],
    ['no signature text', { address, signature: {} }, [400, 'invalid-signature']],
    ['another member', { address, amount: '1' }, [400, 'bad-request']],
    ['a member twice', `{"address":"${address}","address":"${address}"}`, [400, 'bad-request']],
    ['no JSON', 'address=1', [400, 'bad-request']],
    ['no object', '[]', [400, 'bad-request']],
    ['nothing', '', [400, 'bad-request']],
    ['too much', JSON.stringify({ address, network: 'x'.repeat(5000) }), [413, 'body-too-large']],
  ]
  for (const [name, body, answer] of bad) {
    test(`error: ${name}: ${answer.join(' ')}`, async () => {
      expect(await refusalOf(body)).toEqual(answer)
    })
  }

  test('error: any invalid JSON is a 4xx and no grant', async () => {
    const member = fc.oneof(fc.constant(address), fc.constant(network), fc.string(), fc.jsonValue())
    const named = fc.dictionary(fc.constantFrom('address', 'network', 'signature', 'x'), member)
    const bodies = fc.oneof(
      fc.json(),
      fc.string(),
      named.map((value) => JSON.stringify(value)),
    )
    const isHarmless = async (body: string) => {
      const { status } = await ask(body)
      return status >= 400 && status < 500
    }
    await fc.assert(
      fc.asyncProperty(
        bodies.filter((body) => !body.includes(`"address":"${address}"`)),
        isHarmless,
      ),
      runs(300),
    )
  })

  test('error: other methods and content types are refused', async () => {
    const wrong = await ask(undefined, { method: 'GET' })
    expect(wrong.status).toBe(405)
    expect(wrong.headers.get('allow')).toBe('POST, OPTIONS')
    const headers = { 'content-type': 'text/plain' }
    expect(await refusalOf({ address }, { headers })).toEqual([400, 'bad-request'])
  })

  test('a page of another origin may send a request', async () => {
    const { status, headers } = await ask(undefined, { method: 'OPTIONS' })
    expect(status).toBe(204)
    expect(headers.get('access-control-allow-headers')).toContain('Content-Type')
    expect(headers.get('access-control-allow-origin')).toBe('*')
  })

  test('error: the requests of one client are limited, then those of its network', async () => {
    const asked = (client: string) => ask({}, { client }).then(({ status }) => status)
    const own = await Promise.all(Array.from({ length: 60 }, () => asked('192.0.2.1')))
    expect(own.filter((status) => status === 429)).toHaveLength(50)
    const others = await Promise.all(
      Array.from({ length: 40 }, (_, index) => asked(`192.0.2.${2 + index}`)),
    )
    // Refused requests of one client do not count for its neighbours.
    expect(others.filter((status) => status === 429)).toHaveLength(10)
    const refused = await ask({}, { client: '192.0.2.1' })
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0)
    expect(refused.json.code).toBe('rate-limited')
  })

  test('the requests above made no grant', async () => {
    expect(await weiOf(chain, address)).toBe(0n)
  })
})

test('metrics count grants and refusals', async () => {
  const text = await (await fetch(`${world.url}/metrics`)).text()
  expect(text).toMatch(/turnpike_sponsor_grants_today\{network="eip155:4663"\} [1-9]/)
  expect(text).toMatch(/turnpike_sponsor_spent_wei_today\{network="eip155:4663"\} [1-9]/)
  expect(text).toMatch(/turnpike_sponsor_refusals_total\{reason="already-sponsored"\} [1-9]/)
})
