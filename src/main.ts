export {}

declare const VERSION: string | undefined

const usage = `turnpike sells any HTTP API per request to any client with a stablecoin wallet.

Usage: turnpike [command] [options]

  serve            serve merchants.toml (the default); SIGHUP reads it again
  check            validate merchants.toml; --online also chains, contracts, pools, upstreams
  demo             local chains, sample upstreams and the gateway; --once also buys and exits
  pay URL          buy one request with a private key; the body goes to stdout
  receipt verify RECEIPT
                   check a Payment-Receipt or PAYMENT-RESPONSE value, a file with one, or - for
                   stdin, against the receipt key of --key or --url
  orders list      stock orders: those that are held first, then the unfinished and the newest
  orders show ID   one order with every transaction of it
  orders retry ID  go on with a held order; serve may be running
  meter FILE       what a stored answer (JSON or an event stream) costs at --route MERCHANT/ROUTE;
                   --request FILE is the body that it answered
  backup FILE      consistent copy of the live database; serve may be running
  version          print the version

Options
  --config FILE    configuration (default: merchants.toml)
  --data DIR       data directory (default: ./data)
  --online         check: ask every chain, contract, pool and upstream too
  --once           demo: buy with every stock client, show what happened, exit
  --protocol NAME  pay: mpp or x402 (default: the first that is offered)
  --scheme NAME    pay: exact, the price before the answer, or upto, x402's charge by use, of
                   which the price is the ceiling (default: exact)
  --network ID     pay: only on this network, e.g. eip155:8453
  --transfer NAME  pay: only by eip3009 or permit2
  --method NAME    pay: HTTP method (default: GET, with --data POST)
  --data BODY      pay: request body
  --key HEX        pay: private key (better: PAY_KEY in the environment);
                   receipt: address of the receipt key
  --url URL        receipt: service that publishes the receipt key
  --max AMOUNT     pay: refuse to sign more dollars, of upto the ceiling (default: 1)
  --rpc URL        pay: node of the network, if the wallet must approve Permit2 first
  --redeem TOKEN   pay: ask again for what was paid for and not delivered
  --route NAME     meter: MERCHANT/ROUTE, e.g. assistant/chat
  --request FILE   meter: the request body (default: any request, at the price of the route)
  --help           this text
`

const commands = [
  'serve',
  'check',
  'demo',
  'pay',
  'receipt',
  'orders',
  'meter',
  'backup',
  'version',
] as const
type Command = (typeof commands)[number]

const allowed: Readonly<Record<Command, readonly string[]>> = {
  serve: ['config', 'data'],
  check: ['config', 'data', 'online'],
  demo: ['once', 'config'],
  pay: [
    'protocol',
    'scheme',
    'network',
    'transfer',
    'method',
    'data',
    'key',
    'max',
    'redeem',
    'rpc',
  ],
  receipt: ['key', 'url'],
  orders: ['data'],
  meter: ['config', 'route', 'request'],
  backup: ['data'],
  version: [],
}

/** Operands after the command, in order. The first operand of `receipt` is a verb. */
const operandsOf: Partial<Readonly<Record<Command, readonly string[]>>> = {
  pay: ['a URL'],
  receipt: ['verify', 'a receipt'],
  orders: ['list, show or retry', 'the id of an order'],
  meter: ['a file'],
  backup: ['a file'],
}

/** Verbs of the commands that have them. */
const verbsOf: Partial<Readonly<Record<Command, readonly string[]>>> = {
  receipt: ['verify'],
  orders: ['list', 'show', 'retry'],
}

// Do this first, because it restarts the process.
if (mayServe(Bun.argv[2]) && process.env.BUN_CONFIG_MAX_HTTP_REQUESTS === undefined) {
  const { raiseFetchLimit } = await import('./cli/fetches')
  raiseFetchLimit()
}
process.exitCode = await main(Bun.argv.slice(2))

/** Whether the first argument may mean `serve`. */
function mayServe(word: string | undefined): boolean {
  return word === undefined || word === 'serve' || word.startsWith('-')
}

async function main(argv: string[]): Promise<number> {
  const args = parse(argv)
  if (typeof args === 'string') {
    process.stderr.write(`turnpike: ${args}\nRun turnpike --help.\n`)
    return 2
  }
  const { command, values, word, operand } = args
  if (values.help) {
    process.stdout.write(usage)
    return 0
  }
  const file = values.config ?? 'merchants.toml'
  const dataDir = values.data ?? 'data'
  // Each command loads only its own modules, so that a start does not wait for the others.
  switch (command) {
    case 'version':
      process.stdout.write(`turnpike ${typeof VERSION === 'string' ? VERSION : 'development'}\n`)
      return 0
    case 'check': {
      const { check } = await import('./cli/check')
      return check({
        file,
        dataDir,
        env: process.env,
        online: values.online ?? false,
        now: Date.now,
        out: print,
      })
    }
    case 'demo': {
      const { demo } = await import('./cli/demo')
      return demo({ once: values.once ?? false, file, env: process.env })
    }
    case 'pay': {
      const { pay } = await import('./cli/pay')
      return pay({ ...values, url: operand, env: process.env, now: Date.now })
    }
    case 'receipt': {
      const { verifyReceipt } = await import('./cli/receipt')
      return verifyReceipt({
        ...values,
        receipt: operand,
        stdin: () => Bun.stdin.text(),
        out: print,
      })
    }
    case 'orders': {
      const { orders } = await import('./cli/orders')
      return orders({ dataDir, verb: word, id: operand, now: Date.now, out: print })
    }
    case 'meter': {
      const { meterAnswer } = await import('./cli/meter')
      return meterAnswer({ ...values, file, env: process.env, answer: operand, out: print })
    }
    case 'backup': {
      const { backup } = await import('./cli/backup')
      return backup({ dataDir, file: operand, out: print })
    }
    case 'serve': {
      const { serve } = await import('./cli/serve')
      // A log that cannot be written must not keep the process running.
      process.exit(await serve({ file, dataDir, env: process.env }))
    }
  }
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}

type Values = {
  config?: string
  /** serve, check: the data directory. pay: the request body. */
  data?: string
  online?: boolean
  once?: boolean
  protocol?: string
  scheme?: string
  network?: string
  transfer?: string
  method?: string
  /** pay: a private key; receipt: an address. */
  key?: string
  url?: string
  max?: string
  redeem?: string
  rpc?: string
  route?: string
  request?: string
  help?: boolean
}

/** `operand` is the last word after the command, `word` the first. */
type Parsed = { command: Command; values: Values; word: string; operand: string }

/** The command and its options, or a text that says what is wrong with the arguments. */
function parse(argv: string[]): Parsed | string {
  try {
    // Loaded late, so that a start that restarts itself does not load it twice.
    const { parseArgs } = process.getBuiltinModule('node:util')
    const { values, positionals } = parseArgs({
      args: argv,
      allowPositionals: true,
      options: {
        config: { type: 'string' },
        data: { type: 'string' },
        online: { type: 'boolean' },
        once: { type: 'boolean' },
        protocol: { type: 'string' },
        scheme: { type: 'string' },
        network: { type: 'string' },
        transfer: { type: 'string' },
        method: { type: 'string' },
        key: { type: 'string' },
        url: { type: 'string' },
        max: { type: 'string' },
        redeem: { type: 'string' },
        rpc: { type: 'string' },
        route: { type: 'string' },
        request: { type: 'string' },
        help: { type: 'boolean', short: 'h' },
      },
    })
    const [name = 'serve', ...operands] = positionals
    const command = commands.find((known) => known === name)
    if (command === undefined) return `unknown command ${JSON.stringify(name)}`
    const expected = operandsOf[command] ?? []
    const extra = operands[expected.length]
    if (extra !== undefined) return `unexpected argument ${JSON.stringify(extra)}`
    const [word = command === 'receipt' ? 'verify' : ''] = operands
    const verbs = verbsOf[command]
    if (word !== '' && verbs !== undefined && !verbs.includes(word))
      return `unknown command ${JSON.stringify(`${command} ${word}`)}`
    const missing = word === 'list' ? undefined : expected[operands.length]
    if (missing !== undefined && !values.help) return `${command} needs ${missing}`
    const operand = operands.at(-1) ?? ''
    const wrong = Object.keys(values).find(
      (option) => option !== 'help' && !allowed[command].includes(option),
    )
    if (wrong !== undefined) return `${command} does not take --${wrong}`
    return { command, values, word, operand }
  } catch (error) {
    return error instanceof Error ? error.message : 'bad arguments'
  }
}
