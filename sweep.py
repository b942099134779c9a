"""Trains, evaluates and compares runs over values of settings and seeds (tape/commands/sweep.py).

python sweep.py sweep=encodings 'vary.position=[rope,tape]' 'seeds=[0,1]' jobs=2 -- length=512
python sweep.py sweep=addition 'vary.trainer.learning_rate=[1e-3,2e-3]'
python sweep.py sweep=ablation_width dry_run=true                  # only shows the commands
"""

from tape.commands.sweep import main

if __name__ == "__main__":
    main()
