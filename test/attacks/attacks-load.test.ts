import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Payment } from '../../db/Payment'
import { createAnswers as createLedger } from '../../db/sqlite/answers'
import { open } from '../../db/sqlite/open'
import { account } from '../../src/demo/accounts'
import { createBudget, readBody } from '../../src/http/body'
import { answerMaxBytes, createAnswerStore } from '../../src/paywall/answer/store'
import { ProblemError } from '../../src/protocol/Problem'
import { ask } from '../harness/buyer'
import { close, connect, exchange } from '../harness/raw'
import { temporary } from '../harness/settlement'
import { effects, mppUsdc, nothing, startTarget, type Target, x402Usdc } from '../harness/target'

let target: Target
beforeAll(async () => {
  target = await startTarget({
    more: (upstreamUrl) => `
[[merchants]]
slug = "schema"
upstream = "${upstreamUrl}"
allow_private = true
[[merchants.routes]]
path = "/post"
methods = ["POST"]
price = "0.005"
[merchants.routes.body]
type = "object"
[merchants.routes.body.properties.messages]
type = "array"
items = { type = "object", required = ["role"] }
`,
  })
})
afterAll(() => target?.stop())

const buyer = account(1).local()
const at = (path: string) => `${target.url}/m/${path}`

describe('a merchant', () => {
  test("error: repeated redemptions of one payment do not open the merchant's circuit", async () => {
    target.upstream.answer = ({ target: path }) =>
      path.includes('poison') ? new Response('bug', { status: 500 }) : new Response('goods')
    const headers = await mppUsdc.pay(await ask(at('a/get?poison')), buyer)
    for (let attempt = 1; attempt <= 6; attempt++)
      expect((await fetch(at('a/get?poison'), { headers })).status).toBe(502)
    expect((await fetch(at('a/get?poison'), { headers })).status).toBe(410)
    const honest = await x402Usdc.pay(await ask(at('a/get')), buyer)
    expect((await fetch(at('a/get'), { headers: honest })).status).toBe(200)
  })
})

describe('requests that an upstream fails at', () => {
  const failing = (status: number) => {
    target.upstream.answer = ({ target: path }) =>
      path.includes('poison') ? new Response('bug', { status }) : new Response('goods')
  }
  const buy = async (path: string, payer = buyer) => {
    const headers = await x402Usdc.pay(await ask(at(path)), payer)
    return (await fetch(at(path), { headers })).status
  }

  for (const status of [500, 504])
    test(`attack: one payer's requests that are answered by ${status} do not open the circuit for others`, async () => {
      failing(status)
      for (let request = 1; request <= 6; request++) expect(await buy('b/get?poison')).toBe(502)
      expect(await buy('b/get')).toBe(200)
    })

  test('a merchant whose upstream fails for several payers sells nothing', async () => {
    failing(503)
    const payers = [1, 2, 3].map((number) => account(number).local())
    for (const payer of payers)
      for (let request = 1; request <= 7; request++) {
        const { response } = await ask(at('b/get?poison'))
        if (response.status === 402) await buy('b/get?poison', payer)
      }
    expect((await ask(at('b/get'))).response.status).toBe(503)
    expect((await ask(at('a/get'))).response.status).toBe(503)
    target.clock.offsetMs += 6_000
    expect(await buy('b/get')).toBe(200)
    target.clock.offsetMs = 0
  })
})

describe('bodies that cost more than their bytes', () => {
  const chunked = (pieces: string) =>
    `POST /m/b/post HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n${pieces}`

  test('attack: many chunks of one byte are refused, and the connection ends', async () => {
    // The body has no end: only the server can end the connection.
    const [answer, ...others] = await exchange(target.url, chunked('1\r\nx\r\n'.repeat(100_000)))
    expect([answer?.status, others.length]).toEqual([400, 0])
    expect(JSON.parse(answer?.body ?? '')).toMatchObject({ code: 'bad-request' })
    const few = chunked(`${'1\r\nx\r\n'.repeat(200)}0\r\n\r\n`).replace('\r\n', `\r\n${close}\r\n`)
    expect((await exchange(target.url, few))[0]?.status).toBe(402)
  })

  test('attack: bodies that are announced and not sent do not block other clients', async () => {
    const announcement =
      'POST /m/b/post HTTP/1.1\r\nHost: localhost\r\nContent-Length: 160000\r\n\r\n{'
    // Their sum is more than the limit of all bodies.
    const idle = Array.from({ length: 1_800 }, () => connect(target.url, announcement))
    try {
      await Promise.all(idle.map((socket) => new Promise((r) => socket.once('connect', r))))
      const body = JSON.stringify('x'.repeat(200_000))
      expect((await ask(at('b/post'), { method: 'POST', body })).response.status).toBe(402)
    } finally {
      for (const socket of idle) socket.destroy()
    }
  })
})

describe('bodies that are wrong at every byte', () => {
  const list = (entry: string, count: number) =>
    `{"messages":[${`${entry},`.repeat(count)}${entry}]}`

  test('attack 41: bodies that are wrong at every byte are refused without a 5xx, with and without a credential', async () => {
    for (const body of [list('0', 400_000), list('{}', 250_000), list('[[]]', 150_000)]) {
      const init = { method: 'POST', body }
      const asked = await ask(at('schema/post'), init)
      expect(asked.response.status).toBe(402)
      // Without a credential the body is not checked.
      expect(asked.body.invalidParams).toBeUndefined()
      const headers = await x402Usdc.pay(asked, buyer)
      const { result, ...caused } = await effects(target, () =>
        fetch(at('schema/post'), { ...init, headers }),
      )
      const problem = (await result.json()) as { code: string; invalidParams: unknown[] }
      expect([result.status, problem.code]).toEqual([400, 'invalid-parameter'])
      expect(problem.invalidParams.length).toBeLessThan(21)
      expect(caused).toEqual(nothing)
    }
    const short = await ask(at('schema/post'), { method: 'POST', body: list('0', 100) })
    expect(short.body.invalidParams).toHaveLength(20)
  })
})

describe('the store of answers', () => {
  test('attack 33: the store of answers is limited, and expired answers free their bytes', async () => {
    const directory = temporary()
    const db = open({ dataDir: directory.path, now: () => 0 })
    // Only answers are stored here, without their payments.
    db.sqlite.run('PRAGMA foreign_keys = OFF')
    const ledger = createLedger(db)
    const answers = await createAnswerStore(ledger, 2 * answerMaxBytes)
    const store = (id: string, bytes: number, now: number) =>
      answers.store(
        { id, transfer: { payer: id } } as unknown as Payment,
        { status: 200, headers: new Headers(), body: new Uint8Array(bytes) },
        now,
      )
    const isFull = async (now: number, own = answers) => {
      const free = await own.reserve('0xother', now)
      free?.()
      return free === undefined
    }
    await store('a', answerMaxBytes - 1024, 0)
    expect(await isFull(0)).toBe(false)
    expect(await store('too long', answerMaxBytes + 1, 0)).toBe(false)
    expect(await answers.find('too long', 0)).toBeUndefined()
    await store('b', 1000, 1)
    expect(await isFull(1)).toBe(true)
    expect(await isFull(1, await createAnswerStore(ledger, 2 * answerMaxBytes))).toBe(true)
    const day = 24 * 60 * 60 * 1000
    expect(await answers.find('b', day)).toBeDefined()
    expect(await answers.find('a', day)).toBeUndefined()
    expect(await isFull(day + 1)).toBe(false)
    db.close()
    directory.remove()
  })
})

describe('the room of the store', () => {
  test('attack 33: the store counts answers that are stored while it is measured, and is measured once', async () => {
    const directory = temporary()
    const db = open({ dataDir: directory.path, now: () => 0 })
    db.sqlite.run('PRAGMA foreign_keys = OFF')
    const ledger = createLedger(db)
    const { promise, resolve: release } = Promise.withResolvers<void>()
    let sweeps = 0
    let reads = 0
    const answers = await createAnswerStore(
      {
        ...ledger,
        sweep(now) {
          sweeps++
          return ledger.sweep(now)
        },
        async usage(rowBytes) {
          const found = await ledger.usage(rowBytes)
          if (reads++ > 0) await promise
          return found
        },
      },
      2 * answerMaxBytes,
    )
    const answer = (bytes: number) => ({
      status: 200,
      headers: new Headers(),
      body: new Uint8Array(bytes),
    })
    const payment = (id: string) => ({ id, transfer: { payer: id } }) as unknown as Payment
    await answers.store(payment('a'), answer(answerMaxBytes), 0)
    const day = 24 * 60 * 60 * 1000
    const asked = Array.from({ length: 3 }, (_, index) => answers.reserve(`0x${index}`, day))
    while (reads < 2) await Promise.resolve()
    await answers.store(payment('b'), answer(answerMaxBytes), day)
    release()
    expect(await Promise.all(asked)).toEqual([undefined, undefined, undefined])
    expect(sweeps).toBe(1)
    db.close()
    directory.remove()
  })
})

describe('the shares of the store', () => {
  test('attack 33: one payer fills at most its share of the store, requests in progress included', async () => {
    const directory = temporary()
    const db = open({ dataDir: directory.path, now: () => 0 })
    // 2 MiB each; a request in progress counts as 256 KiB.
    const answers = await createAnswerStore(createLedger(db), 16 * answerMaxBytes)
    const asked = Array.from({ length: 9 }, () => answers.reserve('0xAb', 0))
    const [last, ...held] = (await Promise.all(asked)).toReversed()
    expect(last).toBeUndefined()
    expect(held.every((free) => free !== undefined)).toBe(true)
    expect(await answers.reserve('0xaB', 0)).toBeUndefined()
    const other = await answers.reserve('0xcd', 0)
    expect(other).toBeDefined()
    held[0]?.()
    held[0]?.()
    expect(await answers.reserve('0xab', 0)).toBeDefined()
    expect(await answers.reserve('0xab', 0)).toBeUndefined()
    db.close()
    directory.remove()
  })
})

describe('attack 44: slow bodies', () => {
  /** A body that arrives in pieces for as long as it is read. */
  function dripping(bytes: number, everyMs: number, pieces: number) {
    let timer: ReturnType<typeof setInterval> | undefined
    let isCancelled = false
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        let left = pieces
        timer = setInterval(() => {
          controller.enqueue(new Uint8Array(bytes))
          if (--left > 0) return
          clearInterval(timer)
          controller.close()
        }, everyMs)
      },
      cancel() {
        isCancelled = true
        clearInterval(timer)
      },
    })
    const request = new Request('http://localhost/', { method: 'POST', body })
    return { request, isCancelled: () => isCancelled }
  }

  test('error: a body below the minimum transfer rate is aborted and returns its bytes', async () => {
    const budget = createBudget(1_000_000)
    const slow = dripping(10, 10, 1000)
    const error = await readBody(slow.request, 1_000_000, budget, { rateCheckMs: 50 }).catch(
      (thrown) => thrown,
    )
    if (!(error instanceof ProblemError)) throw new Error('it was read')
    expect([error.status, error.code]).toEqual([408, 'body-too-slow'])
    expect(budget.usedBytes()).toBe(0)
    expect(slow.isCancelled()).toBe(true)
  })

  test('a long body above the minimum transfer rate is read to its end', async () => {
    const budget = createBudget(1_000_000)
    const steady = dripping(2_000, 5, 60)
    const { bytes, release } = await readBody(steady.request, 1_000_000, budget, {
      rateCheckMs: 50,
    })
    expect(bytes.byteLength).toBe(120_000)
    release()
    expect(budget.usedBytes()).toBe(0)
  })
})
