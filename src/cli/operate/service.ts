import { existsSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { CommandError, failed } from '../Command'
import type { Run } from '../commands'
import { isCompiled } from '../words'
import { readServiceFile } from './ServiceFile'

const usualData = '/var/lib/turnpike'

/** Prints a systemd unit for this program. Returns the exit code. */
export function service(
  { data, env, user, domain, out, err, ...options }: Run<'service'>,
  {
    cwd = process.cwd(),
    program = ownProgram(),
  }: { cwd?: string; program?: readonly string[] } = {},
): number {
  try {
    const file = resolve(cwd, options.file)
    const { listen, stopSeconds } = readServiceFile(file, env)
    const dataDir = dataDirOf(cwd, data)
    const hasLowPort = domain !== undefined || (listen.port > 0 && listen.port < 1024)
    const unit = formatUnit({ program, file, dataDir, user, domain, stopSeconds, hasLowPort })
    out(unit.trimEnd())
    for (const path of [...program, file]) {
      const reason = hidden(path)
      if (reason) err(`turnpike: ${path} is ${reason}: move it, then print the unit again`)
    }
    return 0
  } catch (error) {
    return failed(error, err)
  }
}

/**
 * The data directory, by default that of a service. A directory in use is not silently replaced by
 * an empty one: it has the keys and the payments.
 */
function dataDirOf(cwd: string, data: string | undefined): string {
  if (data !== undefined) return resolve(cwd, data)
  const used = join(cwd, 'data')
  if (!existsSync(join(used, 'turnpike.sqlite'))) return usualData
  throw new CommandError(
    `${used} has the keys and payments of earlier starts: name it with --data and its owner with --user, or name a new directory with --data ${usualData}`,
  )
}

/** The executable, or the runtime with the sources. Arguments follow it. */
function ownProgram(): readonly string[] {
  return isCompiled() ? [process.execPath] : [process.execPath, Bun.main]
}

/** Why the account of a service may not see a path. */
function hidden(path: string): string | undefined {
  if (/^\/(tmp|var\/tmp)\//.test(path)) return 'a temporary file, which the service does not see'
  if (/^\/(home|root)\//.test(path))
    return 'in a home directory, which the account of the service may be unable to read'
  return undefined
}

/** What a systemd unit runs. All paths are absolute. */
export type Unit = {
  /** The program and the arguments before the word `serve`. */
  program: readonly string[]
  /** Path of merchants.toml. */
  file: string
  dataDir: string
  /** An account of the machine; without it systemd makes one for the time of the service. */
  user?: string | undefined
  /** DNS names for `serve --domain`, separated by commas. */
  domain?: string | undefined
  /** `stop_seconds` of the file. */
  stopSeconds: number
  /** Whether it listens on a port below 1024. */
  hasLowPort: boolean
}

/** Time for the last writes, after the paid requests have ended. */
const stopMarginSeconds = 10
/** The default of `connections_max` is 10,000; each sale may need a connection to an upstream. */
const openFilesMax = 65_536
const stateRoot = '/var/lib/'

/** The text of a unit. Throws CommandError. */
export function formatUnit(unit: Unit): string {
  return `# Printed by \`turnpike service\`: /etc/systemd/system/turnpike.service
[Unit]
Description=turnpike sells HTTP APIs per request
Wants=network-online.target
After=network-online.target
# Never stop the attempts to start: a node that does not answer may return.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=${commandOf(unit)}
# Reads merchants.toml again.
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
# Wrong options: another attempt would end the same.
RestartPreventExitStatus=2
# stop_seconds of merchants.toml and ${stopMarginSeconds} s: paid requests end before.
TimeoutStopSec=${unit.stopSeconds + stopMarginSeconds}
KillMode=mixed
LimitNOFILE=${openFilesMax}

# Secrets as NAME=value, owned by root with mode 0600. systemd reads them before it starts the
# service, which cannot read the file itself.
EnvironmentFile=-${specifiersOf(dirname(unit.file))}/turnpike.env
# Or a secret in a file that only this service can read (systemd 250):
#LoadCredential=RELAYER_KEYS:${specifiersOf(dirname(unit.file))}/RELAYER_KEYS
#Environment=RELAYER_KEYS_FILE=%d/RELAYER_KEYS

${accountOf(unit).join('\n')}
UMask=0077

${capabilitiesOf(unit).join('\n')}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=${isAtHome(unit) ? 'read-only' : 'yes'}
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateDevices=yes
PrivateTmp=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
# MemoryDenyWriteExecute is missing: the runtime compiles JavaScript to machine code.

[Install]
WantedBy=multi-user.target
`
}

function commandOf({ program, file, dataDir, domain }: Unit): string {
  const domains = domain === undefined ? [] : ['--domain', assertDomain(domain)]
  const [path = '', ...rest] = program
  if (/["'\\]/.test(path))
    throw new CommandError(
      `systemd starts no program with a quote or backslash in its path: ${path}`,
    )
  const words = [...rest, 'serve', '--config', file, '--data', dataDir, ...domains]
  // Variables are replaced in arguments, and not in the path of the program.
  const args = words.map((word) => quote(word.replaceAll('$', '$$$$')))
  return [quote(path), ...args].join(' ')
}

/** The account and its access to the data directory. */
function accountOf({ dataDir, user }: Unit): string[] {
  if (user !== undefined && !/^[a-z_][a-z0-9_-]{0,30}$/.test(user))
    throw new CommandError('--user is the name of an account of this machine')
  const below = dataDir.startsWith(stateRoot) ? dataDir.slice(stateRoot.length) : ''
  // systemd makes the directory, and the account owns it.
  const isState = /^[\w.-]+(\/[\w.-]+)*$/.test(below)
  if (user === undefined && !isState)
    throw new CommandError(
      `${dataDir} is not below ${stateRoot}, where a service without an account of its own may write: name an account with --user, which owns the directory, or another --data`,
    )
  const state = isState
    ? [`StateDirectory=${below}`, 'StateDirectoryMode=0700']
    : [`ReadWritePaths=${quote(dataDir)}`]
  return [user === undefined ? 'DynamicUser=yes' : `User=${user}`, ...state]
}

function capabilitiesOf({ hasLowPort }: Unit): string[] {
  return hasLowPort
    ? [
        '# For ports below 1024.',
        'AmbientCapabilities=CAP_NET_BIND_SERVICE',
        'CapabilityBoundingSet=CAP_NET_BIND_SERVICE',
      ]
    : // In a user namespace of its own the service could not use a capability.
      ['CapabilityBoundingSet=', 'AmbientCapabilities=', 'PrivateUsers=yes']
}

/** Whether a path is in a directory that ProtectHome=yes would hide. */
function isAtHome({ program, file, dataDir }: Unit): boolean {
  return [...program, file, dataDir].some((path) => /^\/(home|root|run\/user)\//.test(path))
}

function assertDomain(domain: string): string {
  if (/^[a-z0-9-]+(\.[a-z0-9-]+)+(,[a-z0-9-]+(\.[a-z0-9-]+)+)*$/i.test(domain)) return domain
  throw new CommandError('--domain is a DNS name, such as api.example.com')
}

/** A word as systemd reads it. */
function quote(word: string): string {
  const text = specifiersOf(word)
  if (/^[\w./:@,+%$-]+$/.test(text)) return text
  return `"${text.replace(/["\\]/g, '\\$&')}"`
}

/** A text in which systemd must not see specifiers. Throws CommandError for a line break. */
function specifiersOf(text: string): string {
  const code = [...text].find((letter) => letter < ' ' || letter === '\u007f')
  if (code !== undefined) throw new CommandError('a path must not contain a control character')
  return text.replaceAll('%', '%%')
}
