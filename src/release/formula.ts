import manifest from '../../package.json'

/** The executables that Homebrew installs. */
export const formulaTargets = ['darwin-arm64', 'linux-x64', 'linux-arm64'] as const

/**
 * A Homebrew formula that downloads the executables from below a URL. `digests` are the SHA-256 of
 * their files: https://docs.brew.sh/Formula-Cookbook
 */
export function formula(
  url: string,
  digests: Readonly<Record<(typeof formulaTargets)[number], string>>,
): string {
  const source = (name: keyof typeof digests, indent: string) =>
    `${indent}url "${url}/turnpike-${name}"\n${indent}sha256 "${digests[name]}"`
  return `class Turnpike < Formula
  desc "Payment gateway that sells HTTP APIs per request"
  homepage "${new URL(url).origin}"
  version "${manifest.version}"
  license "${manifest.license}"

  on_macos do
    depends_on arch: :arm64
${source('darwin-arm64', '    ')}
  end

  on_linux do
    on_intel do
${source('linux-x64', '      ')}
    end
    on_arm do
${source('linux-arm64', '      ')}
    end
  end

  def install
    executable = Dir["turnpike-*"].first
    chmod 0755, executable
    libexec.install executable => "turnpike"
    # On macOS the runtime would send a report to its makers when it crashes.
    (bin/"turnpike").write_env_script libexec/"turnpike",
                                      BUN_ENABLE_CRASH_REPORTING: "0", TURNPIKE_COMMAND: "turnpike"
    generate_completions_from_executable(bin/"turnpike", "completion", shells: [:bash, :zsh, :fish])
  end

  service do
    run [opt_bin/"turnpike", "serve", "--config", etc/"turnpike/merchants.toml",
         "--data", var/"lib/turnpike"]
    keep_alive crashed: true
    log_path var/"log/turnpike.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/turnpike version")
  end
end
`
}
